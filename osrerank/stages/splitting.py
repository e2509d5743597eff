"""Split long documents into overlapping passages of whole words.

A passage is a window of a fixed number of words, as in Dai, Callan: Deeper text understanding for IR with contextual
neural language modeling, SIGIR 2019, arXiv:1905.09217, section 3. The default sizes, in `Windows`, are those of Chen et
al.: ICIP at TREC-2020 Deep Learning Track, section 2.

Dense texts, such as Chinese or code, have far more tokens than words, because a tokenizer makes many tokens of a long
word. So a long word of a dense text is cut into pieces of three characters, and each piece counts as a word. A passage
of a dense text can begin or end inside a word.
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
"""The maximum length of a word that is not cut into pieces. A longer word makes its text dense."""
MAX_SPACELESS_RUN = 10
"""The maximum number of characters in a row from scripts without spaces, such as Chinese. More make a text dense."""
PIECE_LENGTH = 3
"""The number of characters in a piece of a long word. A tokenizer makes one to three tokens of a piece."""
MIN_DENSE_LENGTH = 200
"""The minimum length of a dense text."""
MAX_SYMBOL_FRACTION = 0.2
"""The maximum fraction of symbols in a text that is not dense.

A tokenizer makes a token of each symbol. So in a text with more symbols, such as code, symbols are separate from the
words beside them: "f(x)" consists of "f", "(", "x" and ")". Two of these count as one word if no space is between them.
"""
# More than MAX_SPACELESS_RUN characters from scripts without spaces.
_LONG_SPACELESS_RUN = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
    rf"{{{MAX_SPACELESS_RUN + 1}}}"
)


def _word_or_piece(character: str) -> str:
    """Return a pattern for a whole word that is not too long, or else for a piece of a word.

    ``character`` is the pattern of a word's characters.
    """
    without_spaceless_run = rf"(?!{character}*?{_LONG_SPACELESS_RUN.pattern})"
    word = rf"(?<!{character}){without_spaceless_run}{character}{{1,{MAX_WORD_LENGTH}}}(?!{character})"
    return rf"{word}|{character}{{1,{PIECE_LENGTH}}}"


_WORD_OR_PIECE = re.compile(_word_or_piece(r"\S"))
_WORD_OR_PIECE_OR_SYMBOL = _word_or_piece(r"\w") + r"|[^\w\s]"
_ONE_OR_TWO = re.compile(f"(?:{_WORD_OR_PIECE_OR_SYMBOL}){{1,2}}")
"""What counts as one word in a text with many symbols."""
# The following bytes are counted in UTF-8 text, because this is faster than matching a pattern.
_ASCII_SYMBOLS = string.punctuation.encode()
_ASCII_SPACES = bytes(byte for byte in range(128) if chr(byte).isspace())
_MASK_WORDS = bytes(ord(" ") if byte in _ASCII_SPACES else ord("x") for byte in range(256))
"""A translation table that maps ASCII white space to a space, and each other byte to an x."""
_MASKED_LONG_WORD = b"x" * (MAX_WORD_LENGTH + 1)
_FIRST_BYTES_OF_SPACES = _ASCII_SPACES + b"\xc2\xe1\xe2\xe3"
"""The first bytes of white space. Some other characters begin with the same bytes, so a count is an upper bound."""
_FIRST_BYTES_OF_SPACELESS = bytes({0xE0, 0xE1, *range(0xE3, 0xF5)})
"""The first bytes of characters in scripts without spaces. 0xE2 is left out, because dashes begin with it."""


def is_dense(text: str) -> bool:
    """Return whether a text is dense: it has far more tokens than words, as in Chinese, code or lists of URLs.

    A text is dense if one of its words has more than 40 characters, or more than 10 in a row from scripts without
    spaces, or if more than a fifth of its characters are ASCII symbols. Texts under 200 characters are never dense.
    """
    return _is_dense(text, _encode(text))


def _is_dense(text: str, encoded: bytes) -> bool:
    return len(text) >= MIN_DENSE_LENGTH and (_has_many_symbols(text, encoded) or _has_long_word(text, encoded))


def _has_many_symbols(text: str, encoded: bytes) -> bool:
    """Return whether a text has so many ASCII symbols that it is dense."""
    return _count_bytes(encoded, _ASCII_SYMBOLS) > MAX_SYMBOL_FRACTION * len(text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _count_bytes(encoded: bytes, counted_bytes: bytes) -> int:
    """Return how many of a text's UTF-8 bytes are among the counted ones."""
    return len(encoded) - len(encoded.translate(None, counted_bytes))


def _has_long_word(text: str, encoded: bytes) -> bool:
    """Return whether a text has a long word or a long run without spaces. Cheap tests exclude most texts first."""
    is_ascii = len(encoded) == len(text)
    may_have_spaceless_run = not is_ascii and _count_bytes(encoded, _FIRST_BYTES_OF_SPACELESS) > MAX_SPACELESS_RUN
    if may_have_spaceless_run and _LONG_SPACELESS_RUN.search(text):
        return True
    # A long run of bytes is only a hint: a character can have several bytes, and not all white space is ASCII.
    may_have_long_word = _MASKED_LONG_WORD in encoded.translate(_MASK_WORDS)
    return may_have_long_word and any(len(word) > MAX_WORD_LENGTH for word in text.split())


def has_fewer_words(text: str, minimum: int) -> bool:
    """Return whether a text has fewer than ``minimum`` words, as `split_words` counts them.

    A search calls this for every hit, so the cheap tests come first.
    """
    if len(text) < 2 * minimum - 1:  # too short even for words of one character with spaces between them
        return True
    encoded = _encode(text)
    if _is_dense(text, encoded):
        return sum(1 for _ in islice(split_words(text), minimum)) < minimum
    max_spaces = _count_bytes(encoded, _FIRST_BYTES_OF_SPACES)
    return max_spaces < minimum - 1 or len(text.split(maxsplit=minimum)) < minimum


def split_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each word of a text. In a dense text, a piece of a word can count as a word."""
    pattern, encoded = WORD, _encode(text)
    if _is_dense(text, encoded):
        pattern = _ONE_OR_TWO if _has_many_symbols(text, encoded) else _WORD_OR_PIECE
    return (match.span() for match in pattern.finditer(text))


def split_into_windows(
    text: str, words_per_window: int, stride: int, max_windows: int | None = None
) -> list[tuple[int, int]]:
    """Return the start and end of each window, in characters. A text of n words has ceil(n / stride) windows.

    For example, "a b c d" in windows of 2 words with stride 1 is ``[(0, 3), (2, 5), (4, 7), (6, 7)]``.

    Args:
        text: the text, whose words are those of `split_words`.
        words_per_window: the number of words in a window. The last windows can have fewer.
        stride: the number of words from the start of one window to the start of the next.
        max_windows: the maximum number of windows. None returns all windows.
    """
    max_words = None if max_windows is None else (max_windows - 1) * stride + words_per_window
    word_spans = list(islice(split_words(text), max_words))
    windows = []
    for first_word in islice(range(0, len(word_spans), stride), max_windows):
        last_word = min(first_word + words_per_window, len(word_spans)) - 1
        (start, _), (_, end) = word_spans[first_word], word_spans[last_word]
        windows.append((start, end))
    return windows


def find_passages(sections: Iterable[Section], windows: Windows, doc_id: str) -> list[tuple[Section, Span]]:
    """Return a document's passages in order, each with its section.

    A field with a single value is split into windows. If a field has several values, each value is a passage, or is
    split into windows if it has more words than a window. Blank passages are left out.

    Args:
        sections: the document's texts: one for each field, or one for each value of a field with several values.
        windows: the options for splitting them.
        doc_id: the document's id. With the policy ``sampled``, it decides together with the seed which passages remain.
    """
    max_windows = windows.limit if windows.policy == "first" else None  # a sample is drawn from all windows
    passages: list[tuple[Section, Span]] = []
    for section in sections:
        spans = split_into_windows(section.text, windows.words, windows.stride, max_windows)
        if section.value is not None and has_fewer_words(section.text, windows.words + 1):
            spans = [(spans[0][0], spans[-1][1])] if spans else []  # one passage, from the first to the last word
        for start, end in spans:
            if not is_blank(section.text[start:end]):
                passages.append((section, Span(section.field, start, end, section.value)))
        if max_windows is not None and len(passages) >= max_windows:
            break
    return _sample(passages, windows, doc_id)


def leaves_out_text(sections: Iterable[Section], spans: Iterable[Span]) -> bool:
    """Return whether a document has words outside the spans of its passages.

    Args:
        sections: the document's texts.
        spans: the spans of its passages, in the order of the text.
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
    """Return at most ``windows.limit`` passages: the first ones, or else the first, the last and random other ones."""
    if len(passages) <= windows.limit or windows.policy == "first":
        return list(passages[: windows.limit])
    if windows.limit == 1:
        return [passages[0]]
    draw = random.Random(f"{windows.seed}:{doc_id}")  # noqa: S311 - a repeatable draw, no secret
    middle = sorted(draw.sample(range(1, len(passages) - 1), windows.limit - 2))
    return [passages[index] for index in (0, *middle, len(passages) - 1)]
