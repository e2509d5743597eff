"""Rerank by pairs: a model compares each candidate with the other ones (duoBERT).

p_ij is the probability that candidate i is more relevant than candidate j. The method is stage H2 of Nogueira, Yang,
Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.options.pairs import Pairs
from osrerank.stages.html import lacks_text, model_text
from osrerank.stages.ordering import (
    ScoredCandidate,
    StageAttempt,
    StageOutcome,
    deadline_reason,
    explain_no_text,
    rank_block,
    unit_interval_scores,
)
from osrerank.stages.pairs import PairPlan, aggregate
from osrerank.types import NEVER, Candidate, Deadline, PairProbabilities, Ranking, Scorer, Scores, StageReport
from osrerank.types.reasons import ReasonCode

ALL_RIVALS_FAILED = "every candidate to compare it with failed"
"""The reason why a candidate that did not fail itself has no score."""
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DuoStage:
    """Orders the top k = ``depth`` candidates by the probabilities of their pairs, in k(k-1) forward passes.

    p_ij and p_ji come from two forward passes and need not add up to 1. A single candidate has no pair and keeps its
    rank. If a candidate's pairs cannot be scored, the candidate is ranked below the others with its ``failure`` set. If
    the deadline passes first, only the top candidates whose pairs were all scored are reordered. For example, the top 3
    are reordered after 6 of 20 pairs.

    With the aggregation ``sample``, each candidate is compared with m others, in k * m forward passes. It is reordered
    only if all of its m pairs were scored.

    Attributes:
        scorer: the model, which returns the logit of p_ij for a tuple ``(i, j)``.
        depth: the number of candidates that are compared (k1 in the paper).
        pairs: the options for choosing pairs and for aggregating their probabilities.
        name: the stage's name in traces and reports.
    """

    scorer: Scorer
    depth: int = 20
    pairs: Pairs = field(default_factory=Pairs)
    name: str = "duo"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` candidates sorted by their aggregated pair probabilities.

        Raises:
            DeadlineExceeded: no two candidates could be compared in time.
            InferenceError: no two candidates could be compared, or a score is not a number.
        """
        block = ranking.candidates[: self.depth]
        scorable = [candidate for candidate in block if not lacks_text(candidate)]
        if len(scorable) < 2:
            return ranking.with_report(self._report_without_pairs(block, scorable))
        score = partial(self._score_block, ranking.query.text, deadline)
        return rank_block(self.scorer, ranking, score, stage=self.name, depth=self.depth)

    def _score_block(
        self, query: str, deadline: Deadline, block: Sequence[Candidate], scorable: Sequence[Candidate]
    ) -> StageOutcome:
        """Compare candidates with each other.

        Args:
            query: the query's text.
            deadline: the deadline of the search.
            block: the top candidates.
            scorable: the candidates among them that have text, at least two.
        """
        plan = PairPlan.of([candidate.doc_id for candidate in scorable], self.pairs)
        scores = self._score_pairs(query, scorable, plan, deadline)
        probabilities = self._make_matrix(scores, plan)
        attempt = self._make_attempt(block, scorable, plan, scores, probabilities)
        reasons = []
        if scores.reached < len(plan.tuples):
            compared = f"the first {attempt.reached} candidates were compared"
            reasons.append(deadline_reason(f"after {_describe_progress(scores, plan)}: {compared}"))
        pairs = PairProbabilities(plan.doc_ids, _to_rows(probabilities))
        return StageOutcome(attempt, scores.counts(), reasons, pairs)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.scorer.model

    def _report_without_pairs(self, block: Sequence[Candidate], scorable: Sequence[Candidate]) -> StageReport:
        """Return the report for a ranking in which fewer than two candidates have text."""
        n_failed = len(block) - len(scorable)
        applied: bool | Literal["partial"] = True
        reason, code = "", None
        if n_failed:
            applied = "partial" if scorable else False
            reason = explain_no_text([candidate for candidate in block if lacks_text(candidate)])
            code = ReasonCode.NO_TEXT
        return StageReport(
            self.name, applied, reason, code, model=self.model, kind="duo", candidates=len(block), failed=n_failed
        )

    def _score_pairs(self, query: str, scorable: Sequence[Candidate], plan: PairPlan, deadline: Deadline) -> Scores:
        if deadline.passed:
            raise DeadlineExceeded(f'the deadline passed before the stage "{self.name}" began', stage=self.name)
        texts = [model_text(candidate) for candidate in scorable]
        scores = self.scorer.score(query, texts, plan.tuples, deadline=deadline)
        if plan.count_compared(scores.reached) < 2:
            raise DeadlineExceeded(f"the deadline passed after {_describe_progress(scores, plan)}", stage=self.name)
        return scores

    def _make_matrix(self, scores: Scores, plan: PairPlan) -> Matrix:
        """Return the matrix of the probabilities p_ij ``(n, n)``. A pair that has no score is NaN."""
        matrix: Matrix = np.full((plan.size, plan.size), np.nan)
        scored = [index for index in range(scores.reached) if index not in scores.failures]
        logits = scores.values[scored]
        if not np.isfinite(logits).all():
            message = f"the model {self.model} returned a score that is not a number"
            raise InferenceError(message, stage=self.name, model=self.model)
        if scored:
            first, second = np.array([plan.tuples[index] for index in scored]).T
            matrix[first, second] = self.scorer.probabilities(logits)
        return matrix

    def _make_attempt(
        self,
        block: Sequence[Candidate],
        scorable: Sequence[Candidate],
        plan: PairPlan,
        scores: Scores,
        probabilities: Matrix,
    ) -> StageAttempt:
        """Return the scores of the compared candidates, or why a compared candidate has no score.

        Raises:
            InferenceError: fewer than two candidates have a score.
        """
        n_compared = plan.count_compared(scores.reached)
        failures = _choose_failed(scores, plan, n_compared)
        scored_candidates = self._score_candidates(scorable[:n_compared], plan, probabilities, failures)
        truncated_ids = {scorable[index].doc_id for index in scores.truncated_documents(plan.tuples)}
        scored_candidates = [
            scored._replace(is_truncated=scored.candidate.doc_id in truncated_ids) for scored in scored_candidates
        ]
        if len(scored_candidates) < 2:
            reason = next(iter(scores.failures.values()))
            raise InferenceError(f"no two candidates could be compared: {reason}", stage=self.name, model=self.model)
        reasons = {  # those of scored candidates are ignored
            candidate.doc_id: failures.get(index, ALL_RIVALS_FAILED)
            for index, candidate in enumerate(scorable[:n_compared])
        }
        return StageAttempt(block, scorable, scored_candidates, n_compared, reasons)

    def _score_candidates(
        self, candidates: Sequence[Candidate], plan: PairPlan, probabilities: Matrix, failures: Mapping[int, str]
    ) -> list[ScoredCandidate]:
        """Return the scores of the candidates that did not fail and have at least one rival that did not fail.

        Args:
            candidates: the candidates that were compared.
            plan: the pairs. A candidate's rivals are the candidates that it is compared with.
            probabilities: the matrix of the p_ij.
            failures: why candidates failed, by their index.
        """
        scored_candidates = []
        n_possible_rivals = plan.count_rivals(len(candidates))  # a sample can contain rivals that are not in candidates
        for index, candidate in enumerate(candidates):
            rivals = [rival for rival in plan.rivals[index] if rival < n_possible_rivals]
            scored_rivals = [rival for rival in rivals if rival not in failures]
            if scored_rivals and index not in failures:
                scored_candidates.append(
                    self._score_candidate(candidate, probabilities[index, scored_rivals].tolist(), len(rivals))
                )
        return scored_candidates

    def _score_candidate(self, candidate: Candidate, probabilities: list[float], n_rivals: int) -> ScoredCandidate:
        """Return the score from the probabilities of a candidate's scored pairs. ``n_rivals`` includes failed ones."""
        aggregation = self.pairs.aggregation
        score = aggregate(probabilities, aggregation)
        max_score = 1 if aggregation in ("min", "max") else len(probabilities)
        if aggregation == "sample":  # scale up the sum of a sample in which rivals failed, so that sums are comparable
            score, max_score = score * (n_rivals / len(probabilities)), n_rivals
        parts: dict[str, float] = {aggregation: score, "rivals": len(probabilities)}
        (unit,) = unit_interval_scores(np.array([score]), np.array([score / max_score]))
        return ScoredCandidate(candidate, score=score, unit=unit, parts=parts)


def _choose_failed(scores: Scores, plan: PairPlan, n_compared: int) -> dict[int, str]:
    """Choose candidates to leave out, so that no failed pair remains.

    The candidate with the most failed pairs is left out first, then the candidate with the most remaining failed pairs,
    and so on. Of two candidates with the same number, the lower-ranked one is left out. For example, if all pairs of
    one document fail, only this document is left out, and the candidates that it was compared with stay.

    Args:
        scores: the scores of the pairs.
        plan: the pairs.
        n_compared: the number of top candidates whose pairs were all attempted.

    Returns:
        The reason of a failed pair, by the index of the candidate to leave out: ``{3: "the text is too long"}``.
    """
    failed_pairs = np.zeros((plan.size, plan.size), dtype=np.int64)  # 1 at (i, j) if this pair failed
    reasons: dict[int, str] = {}
    n_possible_rivals = plan.count_rivals(n_compared)
    for pair_index, reason in scores.failures.items():
        pair = plan.tuples[pair_index]
        if max(pair) < n_possible_rivals:
            failed_pairs[pair] = 1
            reasons |= {index: reason for index in pair if index not in reasons}
    left_out: dict[int, str] = {}
    n_failed_pairs = failed_pairs.sum(axis=0) + failed_pairs.sum(axis=1)  # of each candidate
    while n_failed_pairs.any():
        worst = plan.size - 1 - int(np.argmax(n_failed_pairs[::-1]))  # the last candidate with the most failed pairs
        left_out[worst] = reasons[worst]
        n_failed_pairs -= failed_pairs[worst] + failed_pairs[:, worst]
        n_failed_pairs[worst] = 0
        failed_pairs[worst] = failed_pairs[:, worst] = 0
    return left_out


def _describe_progress(scores: Scores, plan: PairPlan) -> str:
    """Return how far the deadline let the stage come, such as "6 of 20 pairs"."""
    return f"{scores.reached} of {len(plan.tuples)} pairs"


def _to_rows(probabilities: Matrix) -> tuple[tuple[float | None, ...], ...]:
    """Return the rows of the matrix, with None in place of NaN, which JSON lacks."""
    return tuple(tuple(None if math.isnan(value) else value for value in row) for row in probabilities.tolist())
