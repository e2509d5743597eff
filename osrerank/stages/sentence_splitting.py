"""Clean texts and split them into sentences, each with its span in the original text.

Texts are cleaned as in Birch (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): blanks replace markup and line
ends. Birch splits by NLTK's Punkt (Kiss and Strunk: Unsupervised multilingual sentence boundary detection,
Computational Linguistics 32(4), 2006). Our default is sentencex; Punkt is an option.
"""

import contextlib
import functools
import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

from osrerank._optional import require
from osrerank.errors import MissingDependencyError
from osrerank.options.sentences import PUNKT_LANGUAGES, Sentences
from osrerank.stages.html import blank_out
from osrerank.types import Deadline

# Each match is one piece of markup. A single "<" is text, and the text after it must not be removed.
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|[^\S ]+",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")
PUNKT_BLOCK_LENGTH = 20_000
"""The number of characters that Punkt splits at a time. The deadline is checked between these blocks."""
BATCH_SIZE = 128
"""The number of sentencex's sentences between two checks of the deadline."""


def blank_markup(text: str) -> str:
    """Return a text of the same length, with blanks for scripts, styles, comments, tags, ``&nbsp;`` and line ends."""
    return blank_out(text, MARKUP)


def split_into_sentences(
    clean: str, options: Sentences, size: int = PUNKT_BLOCK_LENGTH
) -> Iterator[list[tuple[int, int]]]:
    """Split a text into sentences. Yield a block of them at a time, each as its start and end offset.

    Long sentences are split by words if the options say so. sentencex is fast and gets the whole text, because a
    quotation can have any length. Punkt gets a block when its sentences are requested. It needs the next word to decide
    where a sentence ends, so the last two sentences of a block are split again as part of the next block.

    Args:
        clean: the text, as `blank_markup` returns it.
        options: the splitter, the language, and the options for long sentences.
        size: the number of characters in a block.

    Raises:
        MissingDependencyError: the splitter is not installed.
    """
    max_words = options.max_words if options.chunks == "words" else None
    if options.splitter == "punkt":
        blocks = _split_by_punkt(clean, options.language, size)
    else:
        blocks = _split_by_sentencex(clean, options)
    for block in blocks:
        sentences = [_split_by_words(clean, start, end, max_words, drop_tail=options.drop_tail) for start, end in block]
        yield list(itertools.chain.from_iterable(sentences))


def _split_by_punkt(clean: str, language: str, size: int) -> Iterator[list[tuple[int, int]]]:
    offset, length = 0, size
    while offset < len(clean):
        block = clean[offset : offset + length]
        spans = [(offset + start, offset + end) for start, end in _load_punkt(language).span_tokenize(block)]
        if offset + length >= len(clean):
            yield spans
            return
        if len(spans) < 3:  # the sentences are longer than a block
            length *= 2
            continue
        yield spans[:-2]
        offset, length = spans[-2][0], size


def wait_until_loaded(options: Sentences, deadline: Deadline) -> bool:
    """Wait until the splitter is loaded, but not beyond the deadline. Return whether it is loaded."""
    if options.splitter == "sentencex" or deadline.at_s is None:
        return True
    return deadline.wait(_start_loading(options.language))


@functools.cache
def _start_loading(language: str) -> threading.Event:
    """Load Punkt's model of a language in another thread. Return an event that is set when loading ends or fails."""
    ended = threading.Event()

    def load() -> None:
        try:
            with contextlib.suppress(MissingDependencyError):  # the stage that needs the splitter raises it
                _load_punkt(language)
        finally:
            ended.set()

    threading.Thread(target=load, name="osrerank-punkt", daemon=True).start()
    return ended


def _split_by_sentencex(clean: str, options: Sentences) -> Iterator[list[tuple[int, int]]]:
    boundaries = require("sentencex", extra="sentences").get_sentence_boundaries(options.language, clean)
    for first in range(0, len(boundaries), BATCH_SIZE):
        batch = boundaries[first : first + BATCH_SIZE]
        yield [(boundary["start_index"], boundary["end_index"]) for boundary in batch]


@functools.cache
def _load_punkt(language: str) -> Any:
    """Return NLTK's splitter with the model of the package ``punkt``. NLTK itself would download a model."""
    learned = require("punkt", extra="punkt").load_model(PUNKT_LANGUAGES[language])
    nltk = require("nltk.tokenize.punkt", extra="punkt")
    parameters = nltk.PunktParameters()
    parameters.abbrev_types.update(learned.abbrev_types)
    parameters.collocations.update(learned.collocations)
    parameters.sent_starters.update(learned.sent_starters)
    parameters.ortho_context.update(learned.ortho_context)
    return nltk.PunktSentenceTokenizer(parameters)


def _split_by_words(
    text: str, start: int, end: int, max_words: int | None, *, drop_tail: bool
) -> Iterator[tuple[int, int]]:
    """Split a sentence into parts of at most ``max_words`` words, if any, and remove the blanks around them."""
    words = [match.span() for match in WORD.finditer(text, start, end)]
    count = len(words)
    max_words = max_words or count
    if drop_tail and count > max_words:
        count -= count % max_words
    for first in range(0, count, max_words or 1):
        yield words[first][0], words[min(first + max_words, count) - 1][1]
