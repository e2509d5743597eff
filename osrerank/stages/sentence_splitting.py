"""Clean texts and split them into sentences, each with its span in the original text.

Texts are cleaned as in Birch (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): blanks replace markup and line
ends. The default splitter is the library sentencex. Birch uses NLTK's Punkt, which is an option here (Kiss and Strunk:
Unsupervised multilingual sentence boundary detection, Computational Linguistics 32(4), 2006).
"""

import contextlib
import functools
import re
import threading
from collections.abc import Iterator
from typing import Any

from osrerank._optional import require
from osrerank.errors import MissingDependencyError
from osrerank.options.sentences import PUNKT_LANGUAGES, Sentences
from osrerank.stages.html import blank_out
from osrerank.types import Deadline

# The alternatives are scripts and styles, comments, tags, &nbsp;, and line ends or other white space. A "<" that begins
# none of these is text, as in "a < b".
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|[^\S ]+",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")
PUNKT_BLOCK_LENGTH = 20_000
"""The number of characters in a block of text that Punkt splits. The deadline is checked between two blocks."""
SENTENCEX_BLOCK_SIZE = 128
"""The number of sentences in a block if sentencex splits the text. The deadline is checked between two blocks."""


def blank_markup(text: str) -> str:
    """Return a text of the same length, with blanks for scripts, styles, comments, tags, ``&nbsp;`` and line ends."""
    return blank_out(text, MARKUP)


def split_into_sentences(
    clean_text: str, options: Sentences, block_length: int = PUNKT_BLOCK_LENGTH
) -> Iterator[list[tuple[int, int]]]:
    """Split a text into sentences. Yield blocks of sentences, each sentence as its start and end offset.

    For example, the only block of "It rains. Stay in." is ``[(0, 9), (10, 18)]``. If the options say so, sentences with
    many words are split further.

    sentencex is fast, and it gets the whole text, because a quotation can have any length. Punkt gets a block of the
    text when the block's sentences are requested. Punkt needs the next word to decide where a sentence ends, so the
    last two sentences of a block are split again as part of the next block.

    Args:
        clean_text: the text, as `blank_markup` returns it.
        options: the splitter, the language, and the options for long sentences.
        block_length: the number of characters in a block for Punkt.

    Raises:
        MissingDependencyError: the splitter is not installed.
    """
    max_words = options.max_words if options.chunks == "words" else None
    if options.splitter == "punkt":
        blocks = _split_by_punkt(clean_text, options.language, block_length)
    else:
        blocks = _split_by_sentencex(clean_text, options)
    for block in blocks:
        parts: list[tuple[int, int]] = []
        for start, end in block:
            parts += _split_by_words(clean_text, start, end, max_words, drop_tail=options.drop_tail)
        yield parts


def _split_by_punkt(clean_text: str, language: str, block_length: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the sentences of each block of the text. A block with fewer than three sentences is doubled."""
    offset, length = 0, block_length
    while offset < len(clean_text):
        block = clean_text[offset : offset + length]
        spans = [(offset + start, offset + end) for start, end in _load_punkt(language).span_tokenize(block)]
        if offset + length >= len(clean_text):
            yield spans
            return
        if len(spans) < 3:  # none is left if the last two are split again
            length *= 2
            continue
        yield spans[:-2]
        offset, length = spans[-2][0], block_length


def wait_until_loaded(options: Sentences, deadline: Deadline) -> bool:
    """Wait until the sentence splitter is loaded or the deadline passes. Return whether splitting can begin.

    Without a deadline, do not wait, because `split_into_sentences` loads the splitter itself.
    """
    if options.splitter == "sentencex" or deadline.at_s is None:  # sentencex loads no model
        return True
    return deadline.wait(_start_loading(options.language))


@functools.cache
def _start_loading(language: str) -> threading.Event:
    """Load Punkt's model of a language in a thread. Return an event that is set when loading succeeds or fails."""
    has_ended = threading.Event()

    def load() -> None:
        try:
            with contextlib.suppress(MissingDependencyError):  # `split_into_sentences` raises it
                _load_punkt(language)
        finally:
            has_ended.set()

    threading.Thread(target=load, name="osrerank-punkt", daemon=True).start()
    return has_ended


def _split_by_sentencex(clean_text: str, options: Sentences) -> Iterator[list[tuple[int, int]]]:
    boundaries = require("sentencex", extra="sentences").get_sentence_boundaries(options.language, clean_text)
    for first in range(0, len(boundaries), SENTENCEX_BLOCK_SIZE):
        block = boundaries[first : first + SENTENCEX_BLOCK_SIZE]
        yield [(boundary["start_index"], boundary["end_index"]) for boundary in block]


@functools.cache
def _load_punkt(language: str) -> Any:
    """Return NLTK's Punkt with the model from the package ``punkt``, because NLTK itself would download a model."""
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
    """Yield the start and end of each part of a sentence, without the blanks around it.

    Args:
        text: the text that contains the sentence.
        start: the start of the sentence.
        end: the end of the sentence.
        max_words: the maximum number of words in a part. None does not split the sentence.
        drop_tail: whether to leave out a last part that is shorter than the others.
    """
    words = [match.span() for match in WORD.finditer(text, start, end)]
    n_words = len(words)
    max_words = max_words or n_words
    if drop_tail and n_words > max_words:
        n_words -= n_words % max_words
    for first in range(0, n_words, max_words or 1):  # a step must not be 0, even without words
        last = min(first + max_words, n_words) - 1
        yield words[first][0], words[last][1]
