"""Blend a model's scores with the scores of the first pass, such as BM25.

The linear sum follows Akkalyoncu Yilmaz et al.: Cross-domain modeling of sentence-level evidence for document
retrieval, EMNLP 2019 (Birch). Reciprocal rank fusion follows Cormack, Clarke, Büttcher, SIGIR 2009.
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
from osrerank.types.values import TEXT_SCORE

RRF_CONSTANT = 60
"""The constant k of reciprocal rank fusion, 1 / (k + rank). It is the authors' value."""
VECTORS_BLEND = "vectors_blend"
"""The name of a stage in the pipeline ``vectors-mono``: it adds the bi-encoder's and the cross-encoder's scores."""
Method = Literal["linear", "rrf", "earlier_stage"]


@dataclass(frozen=True, slots=True)
class BlendStage:
    """Reorders the candidates that the previous stage scored. It combines that stage's scores with other scores.

    Let s be a candidate's first-pass score, and z its score from the previous stage. The new score is

    - ``linear``: z + weight * s / (the highest s in the ranking). So neither the depth nor a constant factor of an
      engine's BM25 scores changes the sum. On the unit interval, it is logistic(sum - weight), which is logistic(z) for
      the candidate with the highest s.
    - ``rrf``: 1 / (60 + rank by s) + 1 / (60 + rank by z), scaled so that a candidate with both ranks 1 gets 1.
    - ``earlier_stage``: z + weight * y, where y is the candidate's score from the stage before the previous one. Both
      are logits. The pipeline ``vectors-mono`` adds the bi-encoder's scores in this way.

    Attributes:
        method: the formula.
        weight: the weight of s or y.
        depth: the number of top candidates that are blended.
        name: the stage's name in traces and reports.
    """

    method: Method
    weight: float = 1.0
    depth: int = 10_000
    name: str = "blend"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - takes no time
        """Return the ranking with the previous stage's scored candidates sorted by their blended scores."""
        began_s = time.perf_counter()
        # The previous stage added an entry to the trace of each candidate that it scored, and ranked these on top.
        n_entries = len(ranking.candidates[0].trace) if ranking.candidates else 0
        scored = [candidate for candidate in ranking.candidates[: self.depth] if len(candidate.trace) == n_entries]
        below = ranking.candidates[len(scored) :]
        scores = np.array(self._blended_scores(scored, ranking), dtype=np.float64)
        units = unit_interval_scores(scores, self._map_to_unit_interval(scores))
        scored_candidates = [
            ScoredCandidate(candidate, score, unit)
            for candidate, score, unit in zip(scored, scores.tolist(), units, strict=True)
        ]
        took_ms = (time.perf_counter() - began_s) * 1000
        report = StageReport(self.name, applied=True, candidates=len(scored), took_ms=took_ms)
        candidates = reorder(ranking, self.name, scored_candidates, below, adds_level=False)
        return ranking.reordered(candidates, report)

    def _blended_scores(self, scored: Sequence[Candidate], ranking: Ranking) -> list[float]:
        if self.method == "linear":
            summands = _compute_first_pass_summands(scored, ranking, self.weight)
            return [candidate.score + summand for candidate, summand in zip(scored, summands, strict=True)]
        if self.method == "rrf":
            return _fuse_ranks(scored, ranking)
        # the last entry of a trace is that of the previous stage, whose score is also `candidate.score`
        return [candidate.score + self.weight * candidate.trace[-2].score for candidate in scored]

    def _map_to_unit_interval(self, scores: Floats) -> Floats:
        if self.method == "rrf":
            return scores
        offset = self.weight if self.method == "linear" else 0.0
        units: Floats = 1 / (1 + np.exp(np.minimum(offset - scores, 700.0)))  # exp overflows above 709
        return units


def _compute_first_pass_summands(candidates: Sequence[Candidate], ranking: Ranking, weight: float) -> list[float]:
    """Return what a linear blend adds to each candidate's score: with weight 1, 1.0 and 0.5 for BM25 scores 8 and 4."""
    best = max([candidate.text_score for candidate in ranking.candidates], default=0.0)
    if not weight or best <= 0:
        return [0.0] * len(candidates)
    return [weight * (max(candidate.text_score, 0.0) / best) for candidate in candidates]


def _fuse_ranks(scored: Sequence[Candidate], ranking: Ranking) -> list[float]:
    """Return the scores of reciprocal rank fusion. The query's boosts do not count for the first-pass ranks."""
    max_score = 2 / (RRF_CONSTANT + 1)
    first_pass = sorted(ranking.candidates, key=lambda candidate: candidate.trace[0].rank)
    if any(TEXT_SCORE in candidate.trace[0].parts for candidate in first_pass):  # the query has boosts
        first_pass.sort(key=lambda candidate: -candidate.text_score)
    ranks = {candidate.doc_id: rank for rank, candidate in enumerate(first_pass, start=1)}
    return [
        (1 / (RRF_CONSTANT + ranks[candidate.doc_id]) + 1 / (RRF_CONSTANT + candidate.rank)) / max_score
        for candidate in scored
    ]


def make_blend_stage(options: Rerank, model: Scorer | Encoder, depth: int = 0) -> BlendStage | None:
    """Return the stage that blends in the first pass's scores, or None if the model's scores alone decide the order.

    ``depth`` is not needed to find out the method and the weight.

    Raises:
        ConfigError: a linear blend is requested, but neither the options nor the model's card have a weight for it.
    """
    if options.sentences is not None:  # the stage for sentences blends in the first pass itself
        return None
    if options.blend == "replace" or (options.blend == "card" and model.advice.first_pass_weight == 0):
        return None
    if options.blend == "rrf":
        return BlendStage("rrf", depth=depth)
    weight = model.advice.first_pass_weight if options.blend_weight is None else options.blend_weight
    if options.blend_weight is None and weight == 0:
        raise ConfigError(
            f"the model {model.model} recommends no weight for a linear blend: set the rerank option blend_weight",
            setting="rerank.blend_weight",
            source="argument",
        )
    return BlendStage("linear", weight, depth)
