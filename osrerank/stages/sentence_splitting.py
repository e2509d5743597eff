"""Clean texts and split them into sentences, each with its span in the original text.

Texts are cleaned as in Birch (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): blanks replace markup and line
ends. Birch splits by NLTK's Punkt (Kiss and Strunk: Unsupervised multilingual sentence boundary detection,
Computational Linguistics 32(4), 2006). Our default is sentencex; Punkt is an option.
"""

import contextlib
import functools
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from osrerank._optional import require
from osrerank.errors import MissingDependencyError
from osrerank.options.sentences import PUNKT_LANGUAGES, Sentences
from osrerank.stages.html import blank_out
from osrerank.types import Deadline

# Removes one piece of markup at a time. A single "<" is text, and what follows it must not be removed.
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|[^\S ]+",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")
BLOCK, BATCH_SIZE = 20_000, 128
"""The characters of a Punkt block, and the sentences of a sentencex batch; deadlines are checked between them."""


def blank_markup(text: str) -> str:
    """Return the text with blanks for scripts, styles, comments, tags, ``&nbsp;`` and line ends; its length stays."""
    return blank_out(text, MARKUP)


def sentence_blocks(clean: str, options: Sentences, size: int = BLOCK) -> Iterator[list[tuple[int, int]]]:
    """Yield blocks of sentences, each sentence as its start and end offset; a block is split when it is requested.

    Long sentences are split by words if the options say so. sentencex is fast and gets the whole text, because a
    quotation may have any length. Punkt gets blocks of characters. It needs the next word to decide where a sentence
    ends, so the last two sentences of a block are split again as part of the next block.

    Args:
        clean: the text, as `blank_markup` returns it.
        options: the splitter, the language, and the options for long sentences.
        size: the number of characters in a block.

    Raises:
        MissingDependencyError: the splitter is not installed.
    """
    max_words = options.max_words if options.chunks == "words" else None
    blocks = (
        _punkt_blocks(clean, options.language, size) if options.splitter == "punkt" else _by_sentencex(clean, options)
    )
    for block in blocks:
        yield [
            span for start, end in block for span in _chunks(clean, start, end, max_words, drop_tail=options.drop_tail)
        ]


def _punkt_blocks(clean: str, language: str, size: int) -> Iterator[list[tuple[int, int]]]:
    first, length = 0, size
    while first < len(clean):
        spans = [(first + start, first + end) for start, end in _by_punkt(clean[first : first + length], language)]
        if first + length >= len(clean):
            yield spans
            return
        if len(spans) < 3:  # the sentences are longer than a block
            length *= 2
            continue
        yield spans[:-2]
        first, length = spans[-2][0], size


def is_ready(options: Sentences, deadline: Deadline) -> bool:
    """Wait until the splitter is loaded or the deadline passes; return whether it is loaded. Loading continues."""
    if options.splitter == "sentencex" or deadline.at_s is None:
        return True
    return deadline.wait(_loading(options.language))


@functools.cache
def _loading(language: str) -> threading.Event:
    """Load Punkt's model of a language in another thread; return an event that is set when loading ends or fails."""
    ended = threading.Event()

    def load() -> None:
        try:
            with contextlib.suppress(MissingDependencyError):  # the stage that uses the splitter raises it again
                _punkt(language)
        finally:
            ended.set()

    threading.Thread(target=load, name="osrerank-punkt", daemon=True).start()
    return ended


def _by_sentencex(clean: str, options: Sentences) -> Iterator[list[tuple[int, int]]]:
    boundaries = require("sentencex", extra="sentences").get_sentence_boundaries(options.language, clean)
    for batch in (boundaries[first : first + BATCH_SIZE] for first in range(0, len(boundaries), BATCH_SIZE)):
        yield [(boundary["start_index"], boundary["end_index"]) for boundary in batch]


def _by_punkt(clean: str, language: str) -> Iterable[tuple[int, int]]:
    spans: Iterable[tuple[int, int]] = _punkt(language).span_tokenize(clean)
    return spans


@functools.cache
def _punkt(language: str) -> Any:
    """Return NLTK's splitter with a language's model from the package ``punkt``; NLTK itself would download a model."""
    learned = require("punkt", extra="punkt").load_model(PUNKT_LANGUAGES[language])
    nltk = require("nltk.tokenize.punkt", extra="punkt")
    parameters = nltk.PunktParameters()
    parameters.abbrev_types.update(learned.abbrev_types)
    parameters.collocations.update(learned.collocations)
    parameters.sent_starters.update(learned.sent_starters)
    parameters.ortho_context.update(learned.ortho_context)
    return nltk.PunktSentenceTokenizer(parameters)


def _chunks(text: str, start: int, end: int, max_words: int | None, *, drop_tail: bool) -> Iterator[tuple[int, int]]:
    """Yield a sentence without surrounding blanks, split into parts of at most ``max_words`` words."""
    words = [match.span() for match in WORD.finditer(text, start, end)]
    count = len(words)
    max_words = max_words or count
    if drop_tail and count > max_words:
        count -= count % max_words
    for first in range(0, count, max_words or 1):
        yield words[first][0], words[min(first + max_words, count) - 1][1]
