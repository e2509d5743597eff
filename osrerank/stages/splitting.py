"""Split long documents into passages of whole words; in dense texts, a passage may begin or end inside a word.

Windows follow Dai, Callan: Deeper text understanding for IR with contextual neural language modeling, SIGIR 2019,
arXiv:1905.09217, section 3. Their sizes follow Chen et al.: ICIP at TREC-2020 Deep Learning Track, section 2.
"""

import random
import re
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from osrerank.options.passages import Windows
from osrerank.types import Section, Span
from osrerank.types.values import is_blank

WORD = re.compile(r"\S+")
LONG_HYPHENS = re.compile(r"-{3,}")
MAX_WORD, MAX_SPACELESS, PIECE = 40, 10, 3
"""The maximum length of a word in characters, and of a run of characters from scripts without spaces. A longer word
counts as one word for every three characters, because a model's tokenizer makes one to three tokens of them."""
MIN_DENSE, MIN_SYMBOLS = 200, 0.2
"""The minimum length of a dense text in characters, and the share of symbols above which a text is dense. In such a
text, two symbols, or a symbol and the next word, count as a word, because a tokenizer makes a token of each symbol."""
_SPACELESS = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
    rf"{{{MAX_SPACELESS + 1}}}"
)
_SPACELESS_RUN = re.compile(_SPACELESS)
_PIECE = re.compile(rf"(?<!\S)(?!\S*?{_SPACELESS})\S{{1,{MAX_WORD}}}(?!\S)|\S{{1,{PIECE}}}")
_TWO_PIECES = re.compile(rf"(?:(?<!\w)(?!\w*?{_SPACELESS})\w{{1,{MAX_WORD}}}(?!\w)|\w{{1,{PIECE}}}|[^\w\s]){{1,2}}")
_ASCII_SYMBOLS = string.punctuation.encode()
_WORD_BYTES = bytes(ord(" ") if chr(byte).isspace() and byte < 128 else ord("x") for byte in range(256))
"""Maps each byte of white space to a space, and each other byte to an x."""
_LONG_RUN = b"x" * (MAX_WORD + 1)
_SPACE_LEADS = bytes(byte for byte in range(128) if chr(byte).isspace()) + b"\xc2\xe1\xe2\xe3"
"""The first UTF-8 bytes of all white space. Other characters share some, so their count is an upper bound."""
_SPACELESS_LEADS = bytes({0xE0, 0xE1, *range(0xE3, 0xF5)})
"""The first UTF-8 bytes of characters in scripts without spaces, but not of dashes and quotation marks."""


def is_dense(text: str) -> bool:
    """Return whether a text has far more tokens than words between spaces, as Chinese, code or lists of URLs have.

    A text is dense if a word has more than 40 characters, or more than 10 in a row from scripts without spaces, or if
    more than a fifth of its characters are symbols. Texts under 200 characters are never dense.
    """
    return _is_dense(text, _encode(text))


def _is_dense(text: str, encoded: bytes) -> bool:
    return len(text) >= MIN_DENSE and (_has_symbols(text, encoded) or _has_long_word(text, encoded))


def _has_symbols(text: str, encoded: bytes) -> bool:
    """Return whether more than a fifth of a text's characters are symbols, as in code without spaces."""
    return _count(encoded, _ASCII_SYMBOLS) > MIN_SYMBOLS * len(text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _count(encoded: bytes, counted_bytes: bytes) -> int:
    """Return how often any of the counted bytes occurs in a text's UTF-8."""
    return len(encoded) - len(encoded.translate(None, counted_bytes))


def _has_long_word(text: str, encoded: bytes) -> bool:
    if len(encoded) > len(text) and _count(encoded, _SPACELESS_LEADS) > MAX_SPACELESS and _SPACELESS_RUN.search(text):
        return True
    # A word of n characters has at least n bytes. White space outside ASCII counts as a part of a word at first.
    return _LONG_RUN in encoded.translate(_WORD_BYTES) and any(len(word) > MAX_WORD for word in text.split())


def has_fewer_words(text: str, count: int) -> bool:
    """Return whether a text has fewer words than a count, as `words_of` counts them.

    A search asks this about every hit, so the cheap tests come first.
    """
    if len(text) < 2 * count - 1:  # not even room for words of one character
        return True
    encoded = _encode(text)
    if _is_dense(text, encoded):
        return sum(1 for _ in islice(words_of(text), count)) < count
    return _count(encoded, _SPACE_LEADS) < count - 1 or len(text.split(maxsplit=count)) < count


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each word of a text; in a dense text, of each part that counts as a word."""
    pattern, encoded = WORD, _encode(text)
    if _is_dense(text, encoded):
        pattern = _TWO_PIECES if _has_symbols(text, encoded) else _PIECE
    return (match.span() for match in pattern.finditer(text))


def window_spans(text: str, words: int, stride: int, at_most: int | None = None) -> list[tuple[int, int]]:
    """Return the start and end of each window, in characters: ceil(n / stride) windows for a text of n words.

    Args:
        text: the text; `words_of` yields its words.
        words: the number of words in a window.
        stride: the number of words from the start of one window to the start of the next.
        at_most: the maximum number of windows; None for no limit.
    """
    end = None if at_most is None else (at_most - 1) * stride + words
    spans = list(islice(words_of(text), end))
    starts = islice(range(0, len(spans), stride), at_most)
    return [(spans[start][0], spans[min(start + words, len(spans)) - 1][1]) for start in starts]


def passage_spans(sections: Iterable[Section], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    """Return a document's passages in order, each with its section.

    The only value of a field is split into windows. If a field has several values, each value is a passage, and is
    split only if it has more words than a window. Blank passages are left out.

    Args:
        sections: the document's texts.
        windows: the options for splitting them.
        doc_id: the document's id; with the seed, it determines the sample.
    """
    at_most = windows.limit if windows.policy == "first" else None
    passages: list[tuple[Section, Span]] = []
    for section in sections:
        spans = window_spans(section.text, windows.words, windows.stride, at_most)
        if section.value is not None and has_fewer_words(section.text, windows.words + 1):
            spans = [(spans[0][0], spans[-1][1])] if spans else []
        bounds = [(start, end) for start, end in spans if not is_blank(section.text[start:end])]
        passages += [(section, Span(section.field, start, end, section.value)) for start, end in bounds]
        if at_most is not None and len(passages) >= at_most:
            break
    return _sampled(passages, windows, doc_id)


def leaves_out(sections: Iterable[Section], spans: Iterable[Span]) -> bool:
    """Return whether a document has words that are in none of its passages.

    Args:
        sections: the document's texts.
        spans: the spans of its passages, in order.
    """
    by_value: defaultdict[tuple[str, int | None], list[Span]] = defaultdict(list)
    for span in spans:
        by_value[span.field, span.value].append(span)
    for section in sections:
        covered_end = 0
        for span in by_value[section.field, section.value]:
            if not is_blank(section.text[covered_end : span.start]):
                return True
            covered_end = max(covered_end, span.end)
        if not is_blank(section.text[covered_end:]):
            return True
    return False


def normalize_spaces(text: str) -> str:
    """Return a passage as a model gets it, with single spaces and at most three hyphens in a row."""
    return LONG_HYPHENS.sub("---", " ".join(text.split()))


def _sampled(passages: Sequence[tuple[Section, Span]], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    if len(passages) <= windows.limit or windows.policy == "first":
        return list(passages[: windows.limit])
    if windows.limit == 1:
        return [passages[0]]
    draw = random.Random(f"{windows.seed}:{doc_id}")  # noqa: S311 - a repeatable draw, no secret
    middle = sorted(draw.sample(range(1, len(passages) - 1), windows.limit - 2))
    return [passages[index] for index in (0, *middle, len(passages) - 1)]
