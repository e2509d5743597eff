"""Score the passages or sentences of several documents together. Both are called parts here."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError, InferenceError
from osrerank.types import CutsTexts, Deadline, Encoder, PassageScores, Scorer, Scores, Span
from osrerank.types.scores import Counts
from osrerank.types.values import BLANK_TEXT, is_blank
from osrerank.types.vectors import Part

GROUP_SIZE = 256
"""The maximum number of parts to cut before scoring them, under a deadline."""


class DocumentPart(NamedTuple):
    """A part of a document that is to be scored.

    Attributes:
        document: index of the document.
        number: index of the part in the document, from 0.
        text: the part's text, as the model reads it.
        span: the part's span in the document; None for the whole document.
    """

    document: int
    number: int
    text: str
    span: Span | None


def score_parts(
    scorer: Scorer, query: str, parts: Sequence[Iterable[Part]], *, deadline: Deadline, stage: str = ""
) -> PassageScores:
    """Score the parts of documents: the first part of every document, then the second parts, and so on.

    Under a deadline, parts are cut and scored in groups, so that cutting does not use up the time for scoring.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        parts: for each document, at least one part; iteration cuts them. Blank parts are not scored.
        deadline: as for ``Scorer.score``.
        stage: the stage's name, for errors.

    Raises:
        InferenceError: a score is not a number.
    """
    queue = _PartQueue(parts)
    collected = _Collected(len(parts))
    while group := queue.next_group(deadline):
        not_blank = [part for part in group if not is_blank(part.text)]
        scores = scorer.score(
            query, [part.text for part in not_blank], [(index,) for index in range(len(not_blank))], deadline=deadline
        )
        if any(not np.isfinite(scores.values[index]) for index in scores.attempted if index not in scores.failures):
            message = f"model {scorer.model} returned a score that is not a number"
            raise InferenceError(message, stage=stage, model=scorer.model)
        collected.add(group, not_blank, scores)
        if deadline.passed:
            break
    return collected.scores(queue.unread)


class _PartQueue:
    """Yields one part of each document in turn, and cuts each part as late as possible."""

    def __init__(self, parts: Sequence[Iterable[Part]]) -> None:
        self._waiting = deque((index, 0, iter(document_parts)) for index, document_parts in enumerate(parts))

    @property
    def unread(self) -> int:
        """How many documents may have parts that were not yielded yet."""
        return len(self._waiting)

    def next_group(self, deadline: Deadline) -> list[DocumentPart]:
        """Return the next parts; under a deadline, at most 256, cut within half of the time left."""
        remaining_s = deadline.remaining_s()
        cutting_deadline = deadline.within_ms(1000 * remaining_s / 2)
        group = []
        for part in self._parts():
            group.append(part)
            if remaining_s != np.inf and (len(group) == GROUP_SIZE or cutting_deadline.passed):
                break
        return group

    def _parts(self) -> Iterator[DocumentPart]:
        while self._waiting:
            document, number, remaining_parts = self._waiting.popleft()
            if (part := next(remaining_parts, None)) is not None:
                self._waiting.append((document, number + 1, remaining_parts))
                yield DocumentPart(document, number, *part)


class _Collected:
    """Collects the scores of parts, group by group, and joins them by document."""

    def __init__(self, size: int) -> None:
        self._spans: list[list[Span | None]] = [[] for _ in range(size)]
        self._logits: list[list[float]] = [[] for _ in range(size)]
        self._odds: list[list[float]] = [[] for _ in range(size)]
        self._failures: dict[tuple[int, int], str] = {}
        self._cut: set[int] = set()
        self._answers: list[Scores] = []

    def add(self, group: Sequence[DocumentPart], not_blank: Sequence[DocumentPart], scores: Scores) -> None:
        """Add a group of parts, and the scores of its parts that are not blank."""
        for part in group:
            self._spans[part.document].append(part.span)
            self._logits[part.document].append(np.nan)
            self._odds[part.document].append(np.nan)
            if is_blank(part.text):
                self._failures[part.document, part.number] = BLANK_TEXT
        for index in scores.attempted:
            document, number = not_blank[index][:2]
            if index not in scores.failures:
                self._logits[document][number] = scores.values[index]
                self._odds[document][number] = scores.log_odds[index]
        self._failures |= {not_blank[index][:2]: reason for index, reason in scores.failures.items()}
        self._cut |= {
            not_blank[index].document for index in scores.cut_documents([(index,) for index in range(len(not_blank))])
        }
        self._answers.append(scores)

    def scores(self, unread: int) -> PassageScores:
        """Return the scores of all documents.

        Args:
            unread: how many documents may have parts that were not scored.
        """
        counts = Counts.total(self._answers)
        if all(answer.cuts is not None for answer in self._answers):
            counts["truncated"] = len(self._cut)
        has_odds = any(answer.odds is not None for answer in self._answers)
        identity = next((answer.identity for answer in self._answers), "")
        odds = _rows(self._odds) if has_odds else None
        cut = frozenset(self._cut)
        logits = _rows(self._logits)
        return PassageScores(self._spans, logits, self._failures, identity, odds, cut, unread, **counts)


def _rows(values: Sequence[Sequence[float]]) -> list[npt.NDArray[np.float32]]:
    return [np.array(row, dtype=np.float32) for row in values]


def chunks_of(model: Scorer | Encoder, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Split texts into chunks that fit a model, as `CutsTexts.chunks` does.

    Raises:
        ConfigError: the model's tokenizer is not in this process.
    """
    if isinstance(model, CutsTexts):
        return model.chunks(query, texts)
    raise ConfigError(
        f'sentences.chunks is "tokens", and the tokenizer of {model.model} is not in this process; score in it '
        '(backend "onnx" or "torch"), or split by "words"',
        setting="rerank.sentences.chunks",
        source="argument",
    )
