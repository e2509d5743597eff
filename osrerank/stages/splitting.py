"""Cut long documents into passages of whole words; only in dense texts do they begin or end inside one.

Windows as in Dai, Callan: Deeper text understanding for IR with contextual neural language modeling, SIGIR 2019,
arXiv:1905.09217, section 3, with the numbers of Chen et al.: ICIP at TREC-2020 Deep Learning Track, section 2.
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
LONGEST, LONGEST_SPACELESS, PIECE = 40, 10, 3
"""The most characters of a word; the most in a row of scripts without spaces; the characters that count as a word in a
longer one: a model's tokenizer makes one to three tokens of them."""
LEAST_DENSE, SYMBOLS = 200, 0.2
"""The fewest characters of a dense text; the share of symbols above which every two symbols, or a symbol and the word
beside it, count as a word, because a model's tokenizer makes a token of each symbol."""
_SPACELESS = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
    rf"{{{LONGEST_SPACELESS + 1}}}"
)
_SPACELESS_RUN = re.compile(_SPACELESS)
_PIECE = re.compile(rf"(?<!\S)(?!\S*?{_SPACELESS})\S{{1,{LONGEST}}}(?!\S)|\S{{1,{PIECE}}}")
_TWO_PIECES = re.compile(rf"(?:(?<!\w)(?!\w*?{_SPACELESS})\w{{1,{LONGEST}}}(?!\w)|\w{{1,{PIECE}}}|[^\w\s]){{1,2}}")
_ASCII_SYMBOLS = string.punctuation.encode()
_SPACELESS_LEADS = bytes({0xE0, 0xE1, *range(0xE3, 0xF5)})
"""The first bytes in UTF-8 of the characters of scripts without spaces; dashes and quotation marks have other ones."""


def is_dense(text: str) -> bool:
    """Return whether a text has words that count as several: in Chinese or Thai, scripts, base64, lists of URLs.

    A word has at most 40 characters, 10 in a row of scripts without spaces, and symbols are at most a fifth of a text:
    what has more is dense. Texts under 200 characters need no cut, and never are.
    """
    return len(text) >= LEAST_DENSE and (has_symbols(text) or _has_long_word(text))


def has_symbols(text: str) -> bool:
    """Return whether more than a fifth of a text's characters are symbols, as in code without spaces."""
    return _count(text, _ASCII_SYMBOLS) > SYMBOLS * len(text)


def _count(text: str, wanted: bytes) -> int:
    """Return how many bytes of a text's UTF-8 are among those wanted."""
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded) - len(encoded.translate(None, wanted))


def _has_long_word(text: str) -> bool:
    if not text.isascii() and _count(text, _SPACELESS_LEADS) > LONGEST_SPACELESS and _SPACELESS_RUN.search(text):
        return True
    at, end = 0, len(text) - LONGEST
    while at < end:  # the word at `at` is too long unless it ends within the next characters
        space = text.rfind(" ", at, at + LONGEST + 1)
        if space < 0:
            words = (text[at : at + LONGEST + 1] + ".").split()  # there may be other white space
            if len(words[-1]) == LONGEST + 2:
                return True
            space = at + LONGEST + 1 - len(words[-1])
        at = space + 1
    return False


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each word of a text; of a dense one, of each part of a word that counts as one."""
    pattern = WORD
    if is_dense(text):
        pattern = _TWO_PIECES if has_symbols(text) else _PIECE
    return (match.span() for match in pattern.finditer(text))


def window_spans(text: str, words: int, stride: int, at_most: int | None = None) -> list[tuple[int, int]]:
    """Return the start and end of each window, in characters: ceil(n / stride) windows of a text of n words.

    Args:
        text: words, as `words_of` yields them.
        words: number of words in a window.
        stride: words from the start of one window to that of the next.
        at_most: most windows; the text beyond them is not read. None for no limit.
    """
    end = None if at_most is None else (at_most - 1) * stride + words
    spans = list(islice(words_of(text), end))
    starts = islice(range(0, len(spans), stride), at_most)
    return [(spans[start][0], spans[min(start + words, len(spans)) - 1][1]) for start in starts]


def passage_spans(sections: Iterable[Section], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    """Return a document's passages, in order, each with the section that it is from.

    A field's only value is cut into windows. Each value of a field with several is a passage, and is cut only if it has
    more words than a window. Blank passages are left out.

    Args:
        sections: the document's texts.
        windows: how they are cut.
        doc_id: determines the sample, together with the seed.
    """
    at_most = windows.limit if windows.policy == "first" else None
    found: list[tuple[Section, Span]] = []
    for section in sections:
        spans = window_spans(section.text, windows.words, windows.stride, at_most)
        if section.value is not None and _is_short(section.text, windows.words):
            spans = [(spans[0][0], spans[-1][1])] if spans else []
        bounds = [(start, end) for start, end in spans if not is_blank(section.text[start:end])]
        found += [(section, Span(section.field, start, end, section.value)) for start, end in bounds]
        if at_most is not None and len(found) >= at_most:
            break
    return _kept(found, windows, doc_id)


def leaves_out(sections: Iterable[Section], spans: Iterable[Span]) -> bool:
    """Return whether a document has words that are in none of its passages.

    Args:
        sections: the document's texts.
        spans: its passages, in order.
    """
    by_value: defaultdict[tuple[str, int | None], list[Span]] = defaultdict(list)
    for span in spans:
        by_value[span.field, span.value].append(span)
    for section in sections:
        read = 0
        for span in by_value[section.field, section.value]:
            if not is_blank(section.text[read : span.start]):
                return True
            read = max(read, span.end)
        if not is_blank(section.text[read:]):
            return True
    return False


def readable(text: str) -> str:
    """Return a passage as a model reads it: with single spaces, and at most three hyphens in a row."""
    return LONG_HYPHENS.sub("---", " ".join(text.split()))


def _is_short(text: str, words: int) -> bool:
    return sum(1 for _ in islice(words_of(text), words + 1)) <= words


def _kept(found: Sequence[tuple[Section, Span]], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    if len(found) <= windows.limit or windows.policy == "first":
        return list(found[: windows.limit])
    if windows.limit == 1:
        return [found[0]]
    draw = random.Random(f"{windows.seed}:{doc_id}")  # noqa: S311 - a repeatable draw, no secret
    between = sorted(draw.sample(range(1, len(found) - 1), windows.limit - 2))
    return [found[index] for index in (0, *between, len(found) - 1)]
