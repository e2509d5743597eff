"""Texts cleaned and cut into sentences, each with its place in the text as it came.

The cleaning is Birch's (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): markup and line ends become blanks.
"""

import re
from collections.abc import Iterator

from osrerank._optional import require

# What is removed is one thing of markup at a time. A lone "<" is text: what follows it must not be swallowed.
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|\s",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")


def cleaned(text: str) -> str:
    """Return the text with scripts, styles, comments, tags, ``&nbsp;`` and line ends blanked out, as long as before."""
    return MARKUP.sub(lambda match: " " * (match.end() - match.start()), text)


def sentence_spans(text: str, language: str, *, max_words: int, drop_tail: bool = False) -> list[tuple[int, int]]:
    """Return where the sentences of a text begin and end, in characters of the text as it came.

    Args:
        text: may hold markup.
        language: a two-letter code.
        max_words: a longer sentence is cut into chunks of so many words.
        drop_tail: whether a chunk shorter than that is dropped at the end of a sentence that was cut.

    Raises:
        MissingDependencyError: the splitter is not installed.
    """
    clean = cleaned(text)
    boundaries = require("sentencex", extra="sentences").get_sentence_boundaries(language, clean)
    return [
        span
        for boundary in boundaries
        for span in _chunks(clean, boundary["start_index"], boundary["end_index"], max_words, drop_tail=drop_tail)
    ]


def _chunks(text: str, start: int, end: int, max_words: int, *, drop_tail: bool) -> Iterator[tuple[int, int]]:
    """Yield a sentence without the blanks around it, in as many chunks as its length needs."""
    words = [match.span() for match in WORD.finditer(text, start, end)]
    count = len(words)
    if drop_tail and count > max_words:
        count -= count % max_words
    for first in range(0, count, max_words):
        yield words[first][0], words[min(first + max_words, count) - 1][1]
