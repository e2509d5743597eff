"""Clean texts and split them into sentences, each with its span in the original text.

The cleaning is Birch's (Akkalyoncu Yilmaz et al., EMNLP 2019, released code): markup and line ends become blanks. Its
splitter is Punkt (Kiss and Strunk: Unsupervised multilingual sentence boundary detection, Computational Linguistics
32(4), 2006) as NLTK has it; ours is sentencex unless Punkt is asked for.
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
from osrerank.stages.html import blanked
from osrerank.types import Deadline

# Removes one piece of markup at a time. A single "<" is text, and what follows it must not be removed.
MARKUP = re.compile(
    r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->|</?[a-z][^<>]*>|&nbsp;|[^\S ]+",
    re.IGNORECASE | re.DOTALL,
)
WORD = re.compile(r"\S+")
BLOCK, AT_ONCE = 20_000, 128
"""Characters that Punkt splits at a time, and sentences yielded at a time, so that a deadline can stop a long text."""


def cleaned(text: str) -> str:
    """Return the text with scripts, styles, comments, tags, ``&nbsp;`` and line ends blanked out, as long as before."""
    return blanked(text, MARKUP)


def sentence_blocks(clean: str, options: Sentences, size: int = BLOCK) -> Iterator[list[tuple[int, int]]]:
    """Yield the start and end of each sentence, in characters, in blocks that are split when they are asked for.

    A long sentence is split by words if the options say so.

    sentencex gets a text as a whole, since a quotation may be of any length; it is fast. Punkt looks no further than
    the next word, so a block's last two sentences begin the next block.

    Args:
        clean: the text, as `cleaned` returns it.
        options: splitter, language, and how long sentences are split.
        size: characters of a block.

    Raises:
        MissingDependencyError: the splitter is not installed.
    """
    most = options.max_words if options.chunks == "words" else None
    blocks = (
        _punkt_blocks(clean, options.language, size) if options.splitter == "punkt" else _by_sentencex(clean, options)
    )
    for block in blocks:
        yield [span for start, end in block for span in _chunks(clean, start, end, most, drop_tail=options.drop_tail)]


def _punkt_blocks(clean: str, language: str, size: int) -> Iterator[list[tuple[int, int]]]:
    first, length = 0, size
    while first < len(clean):
        found = [(first + start, first + end) for start, end in _by_punkt(clean[first : first + length], language)]
        if first + length >= len(clean):
            yield found
            return
        if len(found) < 3:  # the sentences are longer than a block
            length *= 2
            continue
        yield found[:-2]
        first, length = found[-2][0], size


def is_ready(options: Sentences, deadline: Deadline) -> bool:
    """Wait for the splitter until the deadline; return whether it is loaded. Loading goes on after the deadline."""
    if options.splitter == "sentencex" or deadline.at_s is None:
        return True
    return deadline.wait(_loading(options.language))


@functools.cache
def _loading(language: str) -> threading.Event:
    """Load Punkt's model of a language in another thread; return an event that is set when loading ends or fails."""
    ended = threading.Event()

    def load() -> None:
        try:
            with contextlib.suppress(MissingDependencyError):  # raised again where it is used
                _punkt(language)
        finally:
            ended.set()

    threading.Thread(target=load, name="osrerank-punkt", daemon=True).start()
    return ended


def _by_sentencex(clean: str, options: Sentences) -> Iterator[list[tuple[int, int]]]:
    found = require("sentencex", extra="sentences").get_sentence_boundaries(options.language, clean)
    for batch in (found[at : at + AT_ONCE] for at in range(0, len(found), AT_ONCE)):
        yield [(boundary["start_index"], boundary["end_index"]) for boundary in batch]


def _by_punkt(clean: str, language: str) -> Iterable[tuple[int, int]]:
    spans: Iterable[tuple[int, int]] = _punkt(language).span_tokenize(clean)
    return spans


@functools.cache
def _punkt(language: str) -> Any:
    """Return NLTK's splitter with a language's model from the package ``punkt``; NLTK would download one."""
    learned = require("punkt", extra="punkt").load_model(PUNKT_LANGUAGES[language])
    nltk = require("nltk.tokenize.punkt", extra="punkt")
    parameters = nltk.PunktParameters()
    parameters.abbrev_types.update(learned.abbrev_types)
    parameters.collocations.update(learned.collocations)
    parameters.sent_starters.update(learned.sent_starters)
    parameters.ortho_context.update(learned.ortho_context)
    return nltk.PunktSentenceTokenizer(parameters)


def _chunks(text: str, start: int, end: int, most: int | None, *, drop_tail: bool) -> Iterator[tuple[int, int]]:
    """Yield a sentence without surrounding blanks, split if it has more words than ``most``."""
    words = [match.span() for match in WORD.finditer(text, start, end)]
    count = len(words)
    most = most or count
    if drop_tail and count > most:
        count -= count % most
    for first in range(0, count, most or 1):
        yield words[first][0], words[min(first + most, count) - 1][1]
