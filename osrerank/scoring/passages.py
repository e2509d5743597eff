"""Score the passages or the sentences of several documents. Both are called parts here."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError, InferenceError
from osrerank.types import CutsTexts, Deadline, Encoder, PassageScores, Scorer, Scores, Span
from osrerank.types.scores import Counts, single_documents
from osrerank.types.values import BLANK_TEXT, is_blank
from osrerank.types.vectors import Part

GROUP_SIZE = 256
"""The maximum number of parts that are split off and then scored together, if there is a deadline."""


class DocumentPart(NamedTuple):
    """A part of a document.

    Attributes:
        document: index of the document.
        number: index of the part in its document.
        text: the text to score.
        span: the part's span in the document, or None if the part is the whole document.
    """

    document: int
    number: int
    text: str
    span: Span | None


def score_parts(
    scorer: Scorer, query: str, parts: Sequence[Iterable[Part]], *, deadline: Deadline, stage: str = ""
) -> PassageScores:
    """Score the parts of documents: the first part of every document, then the second parts, and so on.

    Under a deadline, parts are split off and scored in groups, so that splitting does not use up the time for scoring.

    Args:
        scorer: the model, which scores single documents.
        query: the query.
        parts: for each document, an iterator that splits off its parts, at least one. Blank parts are not scored.
        deadline: the time after which no further part is scored.
        stage: the stage's name, for error messages.

    Raises:
        InferenceError: a score is not a finite number.
    """
    queue = _PartQueue(parts)
    collector = _ScoreCollector(len(parts))
    while True:
        group = queue.next_group(deadline)
        if not group:
            break
        not_blank = [part for part in group if not is_blank(part.text)]
        texts = [part.text for part in not_blank]
        scores = scorer.score(query, texts, single_documents(len(texts)), deadline=deadline)
        if any(not np.isfinite(scores.values[index]) for index in scores.attempted if index not in scores.failures):
            message = f"the model {scorer.model} returned a score that is not a number"
            raise InferenceError(message, stage=stage, model=scorer.model)
        collector.add(group, not_blank, scores)
        if deadline.passed:
            break
    return collector.scores(queue.n_unfinished)


class _PartQueue:
    """Takes one part of each document in turn. A part is split off only when it is taken."""

    def __init__(self, parts: Sequence[Iterable[Part]]) -> None:
        # (index of the document, number of its next part, its remaining parts)
        self._waiting = deque((index, 0, iter(document_parts)) for index, document_parts in enumerate(parts))

    @property
    def n_unfinished(self) -> int:
        """The number of documents that might contain more parts."""
        return len(self._waiting)

    def next_group(self, deadline: Deadline) -> list[DocumentPart]:
        """Return all remaining parts. Under a deadline, return at most `GROUP_SIZE`, within half of the time left."""
        remaining_s = deadline.remaining_s()
        has_deadline = remaining_s != math.inf
        splitting_deadline = deadline.within_ms(1000 * remaining_s / 2)
        group = []
        for part in self._take_parts():
            group.append(part)
            if has_deadline and (len(group) == GROUP_SIZE or splitting_deadline.passed):
                break
        return group

    def _take_parts(self) -> Iterator[DocumentPart]:
        """Split off and yield the first part of each document, then the second parts, and so on."""
        while self._waiting:
            document, number, remaining_parts = self._waiting.popleft()
            part = next(remaining_parts, None)
            if part is not None:
                self._waiting.append((document, number + 1, remaining_parts))
                yield DocumentPart(document, number, *part)


class _ScoreCollector:
    """Collects the scores of parts in lists: ``self._logits[3][0]`` is the logit of document 3's first part.

    Parts without a score have NaN there.
    """

    def __init__(self, n_documents: int) -> None:
        self._spans: list[list[Span | None]] = [[] for _ in range(n_documents)]
        self._logits: list[list[float]] = [[] for _ in range(n_documents)]
        self._log_odds: list[list[float]] = [[] for _ in range(n_documents)]
        self._failures: dict[tuple[int, int], str] = {}  # (document, part) -> why the part has no score
        self._truncated: set[int] = set()  # the indices of documents with a truncated part
        self._calls: list[Scores] = []

    def add(self, group: Sequence[DocumentPart], not_blank: Sequence[DocumentPart], scores: Scores) -> None:
        """Add the scores of a group of parts. ``scores`` has one score for each of its parts that are ``not_blank``."""
        for part in group:
            self._spans[part.document].append(part.span)
            self._logits[part.document].append(np.nan)
            self._log_odds[part.document].append(np.nan)
            if is_blank(part.text):
                self._failures[part.document, part.number] = BLANK_TEXT
        for index in scores.attempted:
            part = not_blank[index]
            if index in scores.failures:
                self._failures[part.document, part.number] = scores.failures[index]
            else:
                self._logits[part.document][part.number] = scores.values[index]
                self._log_odds[part.document][part.number] = scores.log_odds[index]
        truncated_indices = scores.truncated_documents(single_documents(len(not_blank)))
        self._truncated |= {not_blank[index].document for index in truncated_indices}
        self._calls.append(scores)

    def scores(self, n_unfinished: int) -> PassageScores:
        """Return the scores of all documents. ``n_unfinished`` is the number of those that might have more parts."""
        counts = Counts.total(self._calls)
        if all(call.cuts is not None for call in self._calls):  # the model reports which parts it truncated
            counts["truncated"] = len(self._truncated)  # counts a document once, not each of its parts
        has_odds = any(call.odds is not None for call in self._calls)
        return PassageScores(
            self._spans,
            logits=_to_arrays(self._logits),
            failures=self._failures,
            identity=next((call.identity for call in self._calls), ""),
            odds=_to_arrays(self._log_odds) if has_odds else None,
            cut=frozenset(self._truncated),
            unread=n_unfinished,
            **counts,
        )


def _to_arrays(values: Sequence[Sequence[float]]) -> list[npt.NDArray[np.float32]]:
    return [np.array(row, dtype=np.float32) for row in values]


def split_into_chunks(model: Scorer | Encoder, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Split texts into chunks that fit into a model's window; see `CutsTexts.chunks`.

    Raises:
        ConfigError: the model's tokenizer is not in this process.
    """
    if isinstance(model, CutsTexts):
        return model.chunks(query, texts)
    reason = f'sentences.chunks is "tokens", but the tokenizer of {model.model} is not in this process'
    fix = 'use the backend "onnx" or "torch", or set sentences.chunks to "words"'
    raise ConfigError(f"{reason}; {fix}", setting="rerank.sentences.chunks", source="argument")
