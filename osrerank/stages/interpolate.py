"""Blend a model's scores with those of the first pass, such as BM25.

The linear sum follows Akkalyoncu Yilmaz et al.: Cross-domain modeling of sentence-level evidence for document
retrieval, EMNLP 2019 (Birch). Reciprocal rank fusion follows Cormack, Clarke, Büttcher, SIGIR 2009, with their constant
of 60.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.stages.ordering import Floats, ScoredCandidate, reorder, unit_interval_scores
from osrerank.types import NEVER, Candidate, Deadline, Encoder, Ranking, Scorer, StageReport
from osrerank.types.values import TEXT

RRF_CONSTANT = 60
BLENDED = "vectors_blend"
"""The name of the stage of ``vectors-mono`` that adds the bi-encoder's scores to the cross-encoder's scores."""
Method = Literal["linear", "rrf", "earlier_stage"]


@dataclass(frozen=True, slots=True)
class BlendStage:
    """Reorders the candidates that the previous stage scored, by that stage's scores and the first pass's.

    It needs no model. Let s be a candidate's first-pass score, and z its previous stage's score. The new score is

    - ``linear``: z + weight * s / (the best s of the ranking). It depends neither on the depth nor on a constant factor
      of BM25. On the unit interval, it is logistic(score - weight), which is logistic(z) for the candidate with the
      best s.
    - ``rrf``: 1 / (60 + rank by s) + 1 / (60 + rank by z), scaled so that a candidate with both ranks 1 gets 1.
    - ``earlier_stage``: z + weight * y, where y is the candidate's score from the stage before the previous one. Both
      are logits. ``vectors-mono`` adds the bi-encoder's scores in this way.

    Attributes:
        method: the formula.
        weight: the weight of s or y.
        depth: the number of candidates that are blended, from the top.
        name: the stage's name in traces and reports.
    """

    method: Method
    weight: float = 1.0
    depth: int = 10_000
    name: str = "blend"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - takes no time
        """Return the ranking with its scored candidates in the blended order."""
        started = time.perf_counter()
        n_stages = len(ranking.candidates[0].trace) if ranking.candidates else 0
        scored = [candidate for candidate in ranking.candidates[: self.depth] if len(candidate.trace) == n_stages]
        below = ranking.candidates[len(scored) :]
        scores = np.array(self._blended_scores(scored, ranking), dtype=np.float64)
        units = unit_interval_scores(scores, self._map_to_unit_interval(scores))
        scored_candidates = [ScoredCandidate(*values) for values in zip(scored, scores.tolist(), units, strict=True)]
        took_ms = (time.perf_counter() - started) * 1000
        report = StageReport(self.name, applied=True, candidates=len(scored), took_ms=took_ms)
        candidates = reorder(ranking, self.name, scored_candidates, below, adds_level=False)
        return ranking.reordered(candidates, report)

    def _blended_scores(self, scored: Sequence[Candidate], ranking: Ranking) -> list[float]:
        if self.method == "linear":
            additions = _compute_first_pass_summands(scored, ranking, self.weight)
            return [candidate.score + addition for candidate, addition in zip(scored, additions, strict=True)]
        if self.method == "rrf":
            return _fuse_ranks(scored, ranking)
        return [candidate.score + self.weight * candidate.trace[-2].score for candidate in scored]

    def _map_to_unit_interval(self, scores: Floats) -> Floats:
        if self.method == "rrf":
            return scores
        middle = self.weight if self.method == "linear" else 0.0
        units: Floats = 1 / (1 + np.exp(np.minimum(middle - scores, 700.0)))
        return units


def _compute_first_pass_summands(candidates: Sequence[Candidate], ranking: Ranking, weight: float) -> list[float]:
    """Return what a linear blend adds to each candidate's score: ``weight`` for the best first-pass score, or less."""
    best = max([candidate.text_score for candidate in ranking.candidates], default=0.0)
    if not weight or best <= 0:
        return [0.0] * len(candidates)
    return [weight * (max(candidate.text_score, 0.0) / best) for candidate in candidates]


def _fuse_ranks(scored: Sequence[Candidate], ranking: Ranking) -> list[float]:
    best = 2 / (RRF_CONSTANT + 1)
    first_pass = sorted(ranking.candidates, key=lambda candidate: candidate.trace[0].rank)
    if any(TEXT in candidate.trace[0].parts for candidate in first_pass):
        first_pass.sort(key=lambda candidate: -candidate.text_score)
    ranks = {candidate.doc_id: rank for rank, candidate in enumerate(first_pass, start=1)}
    return [
        (1 / (RRF_CONSTANT + ranks[candidate.doc_id]) + 1 / (RRF_CONSTANT + candidate.rank)) / best
        for candidate in scored
    ]


def make_blend_stage(options: Rerank, model: Scorer | Encoder, depth: int = 0) -> BlendStage | None:
    """Return the stage that blends in the first pass, or None if the model's scores alone decide the order."""
    if options.sentences is not None:  # the stage for sentences blends in the first pass itself
        return None
    if options.blend == "replace" or (options.blend == "card" and model.advice.first_pass_weight == 0):
        return None
    if options.blend == "rrf":
        return BlendStage("rrf", depth=depth)
    weight = model.advice.first_pass_weight if options.blend_weight is None else options.blend_weight
    if options.blend_weight is None and weight == 0:
        raise ConfigError(
            f"a linear blend needs blend_weight: the card of {model.model} recommends none",
            setting="rerank.blend_weight",
            source="argument",
        )
    return BlendStage("linear", weight, depth)
