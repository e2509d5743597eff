"""What every stage does with the scores it got: sort, renumber, keep the rest below."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from osrerank.types import Candidate, Ranking, Span, StageScore

NO_TEXT = "no text in the fields that were asked for"
BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate with the score that a stage gave it.

    Attributes:
        candidate: as it came into the stage.
        score: the natural value to sort by, finite; higher is better.
        unit: the stage's non-decreasing map of ``score`` to [0, 1).
        parts: other natural values by name.
        passage: the passage that decided, where passages were scored.
    """

    candidate: Candidate
    score: float
    unit: float
    parts: dict[str, float] = field(default_factory=dict)
    passage: Span | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How far a stage came down the candidates that it was to score.

    Attributes:
        block: the candidates asked for.
        readable: those of them with text, in order.
        judged: those that were scored.
        reached: how many leading readable ones were attempted before the deadline.
        failures: doc_id -> why it could not be scored.
    """

    block: Sequence[Candidate]
    readable: Sequence[Candidate]
    judged: Sequence[Judged]
    reached: int
    failures: Mapping[str, str]

    @property
    def depth(self) -> int:
        """How many leading candidates of the block were dealt with, those without text among them."""
        return len(self.block) if self.reached == len(self.readable) else self.readable[self.reached].rank - 1

    @property
    def failed(self) -> int:
        """How many of these could not be scored."""
        return self.depth - len(self.judged)


def settle(ranking: Ranking, stage: str, attempt: Attempt) -> tuple[Candidate, ...]:
    """Return the scored candidates in order, below them those that failed, marked, then those not reached."""
    judged_ids = {item.candidate.doc_id for item in attempt.judged}
    unscored = [
        replace(candidate, failure=attempt.failures.get(candidate.doc_id, NO_TEXT))
        for candidate in attempt.block[: attempt.depth]
        if candidate.doc_id not in judged_ids
    ]
    return reorder(ranking, stage, attempt.judged, (*unscored, *ranking.candidates[attempt.depth :]))


def reorder(ranking: Ranking, stage: str, judged: Iterable[Judged], rest: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the judged candidates by score, ties by their rank so far, then the rest in the order given.

    Raises:
        ValueError: judged and rest are not together a permutation of the ranking.
    """
    ordered = sorted(judged, key=lambda item: (-item.score, item.candidate.rank))
    level = 1 + max((entry.level for candidate in ranking.candidates for entry in candidate.trace[-1:]), default=0)
    scored = [_placed(item, stage, rank, level) for rank, item in enumerate(ordered, start=1)]
    below = [replace(item, rank=rank) for rank, item in enumerate(rest, start=len(scored) + 1)]
    if len(scored) + len(below) != len(ranking.candidates):
        raise ValueError(f"stage {stage} returned {len(scored) + len(below)} of {len(ranking.candidates)} candidates")
    return (*scored, *below)


def _placed(item: Judged, stage: str, rank: int, level: int) -> Candidate:
    entry = StageScore(stage, item.score, rank, item.unit, item.parts, item.passage, level)
    trace = (*item.candidate.trace, entry)
    return replace(item.candidate, score=item.score, rank=rank, trace=trace, failure="")
