"""Rerank pointwise: a cross-encoder scores each candidate by itself (monoBERT).

The method is that of Nogueira, Cho: Passage Re-ranking with BERT, 2019, arXiv:1901.04085, section 2. It is stage H1 of
Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.stages.html import model_text
from osrerank.stages.ordering import (
    ScoredCandidate,
    StageAttempt,
    StageOutcome,
    deadline_reason,
    nothing_scored_error,
    rank_block,
    unit_interval_scores,
)
from osrerank.types import NEVER, Candidate, Deadline, Ranking, Scorer, Scores
from osrerank.types.scores import single_documents


@dataclass(frozen=True, slots=True)
class MonoStage:
    """Orders the top ``depth`` candidates by the model's logits.

    Candidates without text, and candidates that the model cannot score, are ranked below the scored ones in their old
    order, with the reason in ``failure``. If the deadline passes first, only the candidates that were reached are
    reordered, such as the top 40 of 100.

    Attributes:
        scorer: the model, which scores single documents.
        depth: the number of candidates that are scored (k0 in the paper).
        name: the stage's name in traces and reports.
    """

    scorer: Scorer
    depth: int = 100
    name: str = "mono"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` candidates sorted by the model's logits.

        Raises:
            DeadlineExceeded: no candidate could be scored in time.
            InferenceError: no candidate could be scored at all, or a score is not a number.
        """
        if deadline.passed:
            raise DeadlineExceeded(f'the deadline passed before the stage "{self.name}" began', stage=self.name)
        score = partial(self._score_block, ranking.query.text, deadline)
        return rank_block(self.scorer, ranking, score, stage=self.name, depth=self.depth)

    def _score_block(
        self, query: str, deadline: Deadline, block: Sequence[Candidate], scorable: Sequence[Candidate]
    ) -> StageOutcome:
        """Score the candidates of a block, of which ``scorable`` have text."""
        texts = [model_text(candidate) for candidate in scorable]
        scores = self.scorer.score(query, texts, single_documents(len(texts)), deadline=deadline)
        attempt = StageAttempt(
            block=block,
            scorable=scorable,
            scored=self._score_candidates(scorable, scores),
            reached=scores.reached,
            failures={scorable[index].doc_id: reason for index, reason in scores.failures.items()},
        )
        reasons = []
        if attempt.depth < len(block):
            reasons.append(deadline_reason(f"after {attempt.depth} of {len(block)} candidates"))
        return StageOutcome(attempt, scores.counts(), reasons)

    def _score_candidates(self, scorable: Sequence[Candidate], scores: Scores) -> list[ScoredCandidate]:
        scored_indices = [index for index in scores.attempted if index not in scores.failures]
        if not scored_indices:
            raise nothing_scored_error(self.scorer, scores.failures, stage=self.name)
        logits = scores.log_odds[scored_indices]
        is_finite = np.isfinite(logits)
        if not is_finite.all():
            first_invalid = int(np.flatnonzero(~is_finite)[0])
            doc_id = scorable[scored_indices[first_invalid]].doc_id
            raise InferenceError(
                f"the model {self.scorer.model} returned a score of document {doc_id!r} that is not a number",
                stage=self.name,
                model=self.scorer.model,
            )
        probabilities = self.scorer.probabilities(logits)
        unit_scores = unit_interval_scores(logits.astype(np.float64), probabilities)
        values = zip(logits.tolist(), unit_scores, probabilities.tolist(), strict=True)
        truncated_indices = scores.truncated_documents(single_documents(len(scorable)))
        return [
            ScoredCandidate(
                scorable[index],
                score=logit,
                unit=unit,
                parts={"logit": logit, "probability": probability},
                is_truncated=index in truncated_indices,
            )
            for index, (logit, unit, probability) in zip(scored_indices, values, strict=True)
        ]
