"""Split long documents into passages of whole words.

In dense texts, such as Chinese or code, a passage can begin or end inside a word.

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
MAX_WORD_LENGTH = 40
"""A word with more characters than this is split into pieces, because a tokenizer makes many tokens of it."""
MAX_SPACELESS_RUN = 10
"""A word is also split if it has more than this many characters in a row from scripts without spaces."""
PIECE_LENGTH = 3
"""Each piece has this many characters, of which a tokenizer makes one to three tokens."""
MIN_DENSE_LENGTH = 200
"""Texts with fewer characters than this are never dense."""
MIN_SYMBOL_SHARE = 0.2
"""A text with a larger share of symbols is dense. A tokenizer makes a token of each symbol, so in such a text, two
symbols, or a symbol and the next word, count as a word."""
_SPACELESS = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
    rf"{{{MAX_SPACELESS_RUN + 1}}}"
)
_SPACELESS_RUN = re.compile(_SPACELESS)
_PIECE = re.compile(rf"(?<!\S)(?!\S*?{_SPACELESS})\S{{1,{MAX_WORD_LENGTH}}}(?!\S)|\S{{1,{PIECE_LENGTH}}}")
_TWO_PIECES = re.compile(
    rf"(?:(?<!\w)(?!\w*?{_SPACELESS})\w{{1,{MAX_WORD_LENGTH}}}(?!\w)|\w{{1,{PIECE_LENGTH}}}|[^\w\s]){{1,2}}"
)
_ASCII_SYMBOLS = string.punctuation.encode()
_WORD_BYTES = bytes(ord(" ") if chr(byte).isspace() and byte < 128 else ord("x") for byte in range(256))
"""A translation table that maps white space to a space, and each other byte to an x."""
_LONG_RUN = b"x" * (MAX_WORD_LENGTH + 1)
_SPACE_LEADS = bytes(byte for byte in range(128) if chr(byte).isspace()) + b"\xc2\xe1\xe2\xe3"
"""The first UTF-8 bytes of white space. Other characters begin with some of them, so a count is an upper bound."""
_SPACELESS_LEADS = bytes({0xE0, 0xE1, *range(0xE3, 0xF5)})
"""The first UTF-8 bytes of characters in scripts without spaces, but not of dashes and quotation marks."""


def is_dense(text: str) -> bool:
    """Return whether a text has far more tokens than words between spaces, as in Chinese, code or lists of URLs.

    A text is dense if a word has more than 40 characters, or more than 10 in a row from scripts without spaces, or if
    more than a fifth of its characters are symbols. Texts under 200 characters are never dense.
    """
    return _is_dense(text, _encode(text))


def _is_dense(text: str, encoded: bytes) -> bool:
    return len(text) >= MIN_DENSE_LENGTH and (_has_symbols(text, encoded) or _has_long_word(text, encoded))


def _has_symbols(text: str, encoded: bytes) -> bool:
    """Return whether so many of a text's characters are symbols that it is dense."""
    return _count(encoded, _ASCII_SYMBOLS) > MIN_SYMBOL_SHARE * len(text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _count(encoded: bytes, counted_bytes: bytes) -> int:
    """Return how many of a text's UTF-8 bytes are among the counted ones."""
    return len(encoded) - len(encoded.translate(None, counted_bytes))


def _has_long_word(text: str, encoded: bytes) -> bool:
    has_wide_characters = len(encoded) > len(text) and _count(encoded, _SPACELESS_LEADS) > MAX_SPACELESS_RUN
    if has_wide_characters and _SPACELESS_RUN.search(text):
        return True
    # A word of n characters has at least n bytes. White space outside ASCII counts as a part of a word at first.
    return _LONG_RUN in encoded.translate(_WORD_BYTES) and any(len(word) > MAX_WORD_LENGTH for word in text.split())


def has_fewer_words(text: str, count: int) -> bool:
    """Return whether a text has fewer words, as `split_words` counts them, than ``count``.

    A search calls this for every hit, so the cheap tests come first.
    """
    if len(text) < 2 * count - 1:  # not even room for words of one character
        return True
    encoded = _encode(text)
    if _is_dense(text, encoded):
        return sum(1 for _ in islice(split_words(text), count)) < count
    return _count(encoded, _SPACE_LEADS) < count - 1 or len(text.split(maxsplit=count)) < count


def split_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each word of a text. In a dense text, a part of a word can count as a word."""
    pattern, encoded = WORD, _encode(text)
    if _is_dense(text, encoded):
        pattern = _TWO_PIECES if _has_symbols(text, encoded) else _PIECE
    return (match.span() for match in pattern.finditer(text))


def split_into_windows(text: str, words: int, stride: int, max_windows: int | None = None) -> list[tuple[int, int]]:
    """Return the start and end of each window, in characters. A text of n words has ceil(n / stride) windows.

    Args:
        text: the text, whose words are those of `split_words`.
        words: the number of words in a window.
        stride: the number of words from the start of one window to the start of the next.
        max_windows: the maximum number of windows. None returns all windows.
    """
    max_words = None if max_windows is None else (max_windows - 1) * stride + words
    spans = list(islice(split_words(text), max_words))
    starts = islice(range(0, len(spans), stride), max_windows)
    return [(spans[start][0], spans[min(start + words, len(spans)) - 1][1]) for start in starts]


def find_passages(sections: Iterable[Section], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    """Return a document's passages in order, each with its section.

    A field with a single value is split into windows. If a field has several values, each value is a passage, and is
    split only if it has more words than a window. Blank passages are left out.

    Args:
        sections: the document's texts.
        windows: the options for splitting them.
        doc_id: the document's id, which determines the sample together with the seed.
    """
    max_windows = windows.limit if windows.policy == "first" else None
    passages: list[tuple[Section, Span]] = []
    for section in sections:
        spans = split_into_windows(section.text, windows.words, windows.stride, max_windows)
        if section.value is not None and has_fewer_words(section.text, windows.words + 1):
            spans = [(spans[0][0], spans[-1][1])] if spans else []
        bounds = [(start, end) for start, end in spans if not is_blank(section.text[start:end])]
        passages += [(section, Span(section.field, start, end, section.value)) for start, end in bounds]
        if max_windows is not None and len(passages) >= max_windows:
            break
    return _sample(passages, windows, doc_id)


def leaves_out_text(sections: Iterable[Section], spans: Iterable[Span]) -> bool:
    """Return whether a document has words that are in none of its passages.

    Args:
        sections: the document's texts.
        spans: the spans of its passages, in order.
    """
    spans_by_value: defaultdict[tuple[str, int | None], list[Span]] = defaultdict(list)
    for span in spans:
        spans_by_value[span.field, span.value].append(span)
    for section in sections:
        covered_end = 0
        for span in spans_by_value[section.field, section.value]:
            if not is_blank(section.text[covered_end : span.start]):
                return True
            covered_end = max(covered_end, span.end)
        if not is_blank(section.text[covered_end:]):
            return True
    return False


def normalize_spaces(text: str) -> str:
    """Return a text with single spaces and at most three hyphens in a row, as a model gets it."""
    return LONG_HYPHENS.sub("---", " ".join(text.split()))


def _sample(passages: Sequence[tuple[Section, Span]], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    if len(passages) <= windows.limit or windows.policy == "first":
        return list(passages[: windows.limit])
    if windows.limit == 1:
        return [passages[0]]
    draw = random.Random(f"{windows.seed}:{doc_id}")  # noqa: S311 - a repeatable draw, no secret
    middle = sorted(draw.sample(range(1, len(passages) - 1), windows.limit - 2))
    return [passages[index] for index in (0, *middle, len(passages) - 1)]
