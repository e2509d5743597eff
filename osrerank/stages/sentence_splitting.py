"""Clean texts and split them into sentences, each with its place in the original text.

The cleaning is Birch's (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): markup and line ends become blanks.
"""

import re
from collections.abc import Iterator

from osrerank._optional import require

# Removes one piece of markup at a time. A single "<" is text, and what follows it must not be removed.
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|\s",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")


def cleaned(text: str) -> str:
    """Return the text with scripts, styles, comments, tags, ``&nbsp;`` and line ends blanked out, as long as before."""
    return MARKUP.sub(lambda match: " " * (match.end() - match.start()), text)


def sentence_spans(text: str, language: str, *, max_words: int, drop_tail: bool = False) -> list[tuple[int, int]]:
    """Return the start and end of each sentence, in characters of the original text.

    Args:
        text: may contain markup.
        language: a two-letter code.
        max_words: words of a sentence; a longer one is split.
        drop_tail: whether the last, shorter part of a split sentence is dropped.

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
    """Yield a sentence without surrounding blanks, split where it is too long."""
    words = [match.span() for match in WORD.finditer(text, start, end)]
    count = len(words)
    if drop_tail and count > max_words:
        count -= count % max_words
    for first in range(0, count, max_words):
        yield words[first][0], words[min(first + max_words, count) - 1][1]
