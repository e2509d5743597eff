"""Clean texts and split them into sentences, each with its place in the original text.

The cleaning is Birch's (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): markup and line ends become blanks. Its
splitter is Punkt (Kiss and Strunk: Unsupervised multilingual sentence boundary detection, Computational Linguistics
32(4), 2006) as NLTK has it; ours is sentencex unless Punkt is asked for.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from osrerank._optional import require
from osrerank.options.sentences import PUNKT_LANGUAGES, Sentences

# Removes one piece of markup at a time. A single "<" is text, and what follows it must not be removed.
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|\s",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")


def cleaned(text: str) -> str:
    """Return the text with scripts, styles, comments, tags, ``&nbsp;`` and line ends blanked out, as long as before."""
    return MARKUP.sub(lambda match: " " * (match.end() - match.start()), text)


def sentence_spans(clean: str, options: Sentences) -> list[tuple[int, int]]:
    """Return the start and end of each sentence, in characters; a long one is split by words where that is asked for.

    Args:
        clean: the text, as `cleaned` returns it.
        options: splitter, language, and how long sentences are split.

    Raises:
        MissingDependencyError: the splitter is not installed.
    """
    sentences = _by_punkt(clean, options.language) if options.splitter == "punkt" else _by_sentencex(clean, options)
    most = options.max_words if options.chunks == "words" else None
    return [span for start, end in sentences for span in _chunks(clean, start, end, most, drop_tail=options.drop_tail)]


def _by_sentencex(clean: str, options: Sentences) -> Iterator[tuple[int, int]]:
    for boundary in require("sentencex", extra="sentences").get_sentence_boundaries(options.language, clean):
        yield boundary["start_index"], boundary["end_index"]


def _by_punkt(clean: str, language: str) -> Iterable[tuple[int, int]]:
    spans: Iterable[tuple[int, int]] = _punkt(language).span_tokenize(clean)
    return spans


@functools.cache
def _punkt(language: str) -> Any:
    """Return NLTK's splitter with its model of a language, out of a package: NLTK's own is a download."""
    learned = require("punkt", extra="punkt").load_model(PUNKT_LANGUAGES[language])
    nltk = require("nltk.tokenize.punkt", extra="punkt")
    parameters = nltk.PunktParameters()
    parameters.abbrev_types.update(learned.abbrev_types)
    parameters.collocations.update(learned.collocations)
    parameters.sent_starters.update(learned.sent_starters)
    parameters.ortho_context.update(learned.ortho_context)
    return nltk.PunktSentenceTokenizer(parameters)


def _chunks(text: str, start: int, end: int, most: int | None, *, drop_tail: bool) -> Iterator[tuple[int, int]]:
    """Yield a sentence without surrounding blanks, split where it has more words than ``most``."""
    words = [match.span() for match in WORD.finditer(text, start, end)]
    count = len(words)
    most = most or count
    if drop_tail and count > most:
        count -= count % most
    for first in range(0, count, most or 1):
        yield words[first][0], words[min(first + most, count) - 1][1]
