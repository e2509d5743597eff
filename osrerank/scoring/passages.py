"""Score the parts of several documents: their passages, or their sentences."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError, InferenceError
from osrerank.types import CutsTexts, Deadline, Encoder, PassageScores, Scorer, Scores, Span
from osrerank.types.scores import Counts
from osrerank.types.values import BLANK, is_blank
from osrerank.types.vectors import Part

AT_ONCE = 256
"""Parts that are cut before they are scored, at most, where there is a deadline."""


class Turn(NamedTuple):
    """A part that is to be scored.

    Attributes:
        document: place of its document.
        number: its place among the document's parts.
        text: as the model reads it.
        span: its place in the document.
    """

    document: int
    number: int
    text: str
    span: Span | None


def score_parts(
    scorer: Scorer, query: str, parts: Sequence[Iterable[Part]], *, deadline: Deadline, stage: str = ""
) -> PassageScores:
    """Score the parts of documents, the first of every document before the second of any.

    Under a deadline some parts are cut and scored before the next are cut, so that the time goes to both.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        parts: of each document at least one, cut when they are asked for; blank ones are not scored.
        deadline: as for ``Scorer.score``.
        stage: its name, for errors.

    Raises:
        InferenceError: a score is not a number.
    """
    turns = _Turns(parts)
    collected = _Collected(len(parts))
    while group := turns.next_group(deadline):
        spoken = [turn for turn in group if not is_blank(turn.text)]
        scores = scorer.score(
            query, [turn.text for turn in spoken], [(at,) for at in range(len(spoken))], deadline=deadline
        )
        if any(not np.isfinite(scores.values[at]) for at in scores.attempted if at not in scores.failures):
            message = f"model {scorer.model} gave a score that is not a number"
            raise InferenceError(message, stage=stage, model=scorer.model)
        collected.add(group, spoken, scores)
        if deadline.passed:
            break
    return collected.scores(turns.unread)


class _Turns:
    """The parts of documents in turns, cut as late as possible."""

    def __init__(self, parts: Sequence[Iterable[Part]]) -> None:
        self._waiting = deque((at, 0, iter(some)) for at, some in enumerate(parts))

    @property
    def unread(self) -> int:
        """How many documents were not cut to their end."""
        return len(self._waiting)

    def next_group(self, deadline: Deadline) -> list[Turn]:
        """Return the next parts; under a deadline those that are cut in half of the time that is left."""
        left_s = deadline.remaining_s()
        until, group = deadline.within_ms(1000 * left_s / 2), []
        for turn in self._turns():
            group.append(turn)
            if left_s != np.inf and (len(group) == AT_ONCE or until.passed):
                break
        return group

    def _turns(self) -> Iterator[Turn]:
        while self._waiting:
            at, number, left = self._waiting.popleft()
            if (part := next(left, None)) is not None:
                self._waiting.append((at, number + 1, left))
                yield Turn(at, number, *part)


class _Collected:
    """The scores of parts, as they come."""

    def __init__(self, size: int) -> None:
        self._places: list[list[Span | None]] = [[] for _ in range(size)]
        self._logits: list[list[float]] = [[] for _ in range(size)]
        self._odds: list[list[float]] = [[] for _ in range(size)]
        self._failures: dict[tuple[int, int], str] = {}
        self._cut: set[int] = set()
        self._answers: list[Scores] = []

    def add(self, group: Sequence[Turn], spoken: Sequence[Turn], scores: Scores) -> None:
        """Add the scores of those of a group that are not blank."""
        for turn in group:
            self._places[turn.document].append(turn.span)
            self._logits[turn.document].append(np.nan)
            self._odds[turn.document].append(np.nan)
        for at in scores.attempted:
            place, number = spoken[at][:2]
            if at not in scores.failures:
                self._logits[place][number] = scores.values[at]
                self._odds[place][number] = scores.log_odds[at]
        self._failures |= {spoken[at][:2]: why for at, why in scores.failures.items()}
        self._failures |= dict.fromkeys({turn[:2] for turn in group} - {turn[:2] for turn in spoken}, BLANK)
        self._cut |= {spoken[at].document for at in scores.cut_documents([(at,) for at in range(len(spoken))])}
        self._answers.append(scores)

    def scores(self, unread: int) -> PassageScores:
        """Return all of them, of documents of which so many were not cut to their end."""
        counts = Counts.total(self._answers)
        if all(one.cuts is not None for one in self._answers):
            counts["truncated"] = len(self._cut)
        has_odds = any(one.odds is not None for one in self._answers)
        identity = next((one.identity for one in self._answers), "")
        odds = _rows(self._odds) if has_odds else None
        cut = frozenset(self._cut)
        logits = _rows(self._logits)
        return PassageScores(self._places, logits, self._failures, identity, odds, cut, unread, **counts)


def _rows(values: Sequence[Sequence[float]]) -> list[npt.NDArray[np.float32]]:
    return [np.array(some, dtype=np.float32) for some in values]


def chunks_of(model: Scorer | Encoder, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the chunks of texts that fit a model, as `CutsTexts.chunks` does.

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
