"""What every stage does with the scores it got: sort, renumber, keep the rest below."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from osrerank.types import Candidate, Ranking, StageScore


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate with the score that a stage gave it.

    Attributes:
        candidate: as it came into the stage.
        score: the natural value to sort by, finite; higher is better.
        unit: the stage's non-decreasing map of ``score`` to [0, 1).
        parts: other natural values by name.
    """

    candidate: Candidate
    score: float
    unit: float
    parts: dict[str, float] = field(default_factory=dict)


def reorder(ranking: Ranking, stage: str, judged: Iterable[Judged], rest: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the judged candidates by score, ties by their rank so far, then the rest in the order given.

    Raises:
        ValueError: judged and rest are not together a permutation of the ranking.
    """
    ordered = sorted(judged, key=lambda item: (-item.score, item.candidate.rank))
    scored = [_placed(item, stage, rank) for rank, item in enumerate(ordered, start=1)]
    below = [replace(item, rank=rank) for rank, item in enumerate(rest, start=len(scored) + 1)]
    if len(scored) + len(below) != len(ranking.candidates):
        raise ValueError(f"stage {stage} returned {len(scored) + len(below)} of {len(ranking.candidates)} candidates")
    return (*scored, *below)


def _placed(item: Judged, stage: str, rank: int) -> Candidate:
    entry = StageScore(stage, item.score, rank, item.unit, item.parts)
    trace = (*item.candidate.trace, entry)
    return replace(item.candidate, score=item.score, rank=rank, trace=trace, failure="")
