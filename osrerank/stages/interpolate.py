"""Blending what a stage says with what the first pass said.

Weighted sums of normalised scores, and reciprocal rank fusion: Cormack, Clarke, Büttcher: Reciprocal rank fusion
outperforms Condorcet and individual rank learning methods, SIGIR 2009, with its constant of 60.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from osrerank.stages.mono import BELOW_ONE
from osrerank.stages.ordering import Judged, reorder
from osrerank.types import NEVER, Candidate, Deadline, Ranking, StageReport

RRF_CONSTANT = 60
Method = Literal["weighted", "rrf"]


@dataclass(frozen=True, slots=True)
class BlendStage:
    """Reorders the candidates that the stage before scored by that score together with the first pass's.

    It computes no inference. With ``weighted`` both scores are scaled to [0, 1] over these candidates (min-max; all
    equal gives 0) and summed; with ``rrf`` the sum of ``1 / (60 + rank)`` counts.

    Attributes:
        method: ``"weighted"`` or ``"rrf"``.
        weight: share of the first pass in the weighted sum, in [0, 1]; 0 keeps the stage's order.
        depth: how many candidates from the top are looked at.
        name: how the stage is called in traces and reports.
    """

    method: Method = "weighted"
    weight: float = 0.5
    depth: int = 10_000
    name: str = "blend"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - takes no time
        """Return the ranking with its scored candidates in the blended order."""
        started = time.perf_counter()
        scored = [item for item in ranking.candidates[: self.depth] if len(item.trace) == _stages(ranking) + 1]
        rest = ranking.candidates[len(scored) :]
        keys = self._weighted(scored) if self.method == "weighted" else _fused(scored)
        judged = [Judged(candidate, key, min(key, BELOW_ONE)) for candidate, key in zip(scored, keys, strict=True)]
        took_ms = (time.perf_counter() - started) * 1000
        report = StageReport(self.name, applied=True, candidates=len(scored), took_ms=took_ms)
        return Ranking(ranking.query, reorder(ranking, self.name, judged, rest), (*ranking.reports, report))

    def _weighted(self, scored: Sequence[Candidate]) -> list[float]:
        first = _scaled([candidate.trace[0].score for candidate in scored])
        last = _scaled([candidate.score for candidate in scored])
        return [self.weight * a + (1 - self.weight) * b for a, b in zip(first, last, strict=True)]


def _stages(ranking: Ranking) -> int:
    """Return how many stages the best candidate has passed: those that passed as many are the scored block."""
    return len(ranking.candidates[0].trace) - 1 if ranking.candidates else 0


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def _fused(scored: Sequence[Candidate]) -> list[float]:
    """Return reciprocal rank fusion's sums, scaled so that rank 1 in both gives 1."""
    best = 2 / (RRF_CONSTANT + 1)
    return [
        (1 / (RRF_CONSTANT + candidate.trace[0].rank) + 1 / (RRF_CONSTANT + candidate.rank)) / best
        for candidate in scored
    ]
