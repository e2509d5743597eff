"""Fit a model card's calibration and first-pass weight on candidates with relevance judgments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.evaluation.basic import ndcg
from osrerank.formats.candidates import candidate_lists
from osrerank.scoring.card import Calibration, ModelCard
from osrerank.types import Qrels, Scorer

STEPS = 50
RIDGE = 1e-9
"""A number added to the Hessian's diagonal, which keeps Newton's step finite if the development set is separable."""
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""The weights of the first pass to try, as logits that the best first-pass score adds."""
FOLDS = 5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """A query's candidates, with a model's scores and the judgments.

    Attributes:
        raw: the model's raw scores ``(n,)``; NaN for candidates that could not be scored.
        first_pass: the first-pass scores divided by the query's best ``(n,)``; zeros if the best is not above 0.
        doc_ids: the n candidates' ids.
        relevance: document id -> grade; a document without a judgment counts as not relevant.
    """

    raw: Floats
    first_pass: Floats
    doc_ids: Sequence[str]
    relevance: dict[str, int]

    @property
    def is_relevant(self) -> npt.NDArray[np.bool_]:
        """Whether each candidate is relevant ``(n,)``."""
        return np.array([self.relevance.get(doc_id, 0) > 0 for doc_id in self.doc_ids], dtype=bool)

    def ndcg(self, calibration: Calibration, weight: float) -> float:
        """Return nDCG@10 of the candidates ordered by logit plus ``weight`` times first-pass score."""
        raw = np.where(np.isnan(self.raw), -np.inf, self.raw)
        order = np.argsort(-(calibration.scale * raw + weight * self.first_pass), kind="stable")
        return ndcg([self.doc_ids[index] for index in order], self.relevance)


@dataclass(frozen=True, slots=True)
class FirstPassWeight:
    """The first pass's weight that orders a development set best, and how good the order is.

    Attributes:
        weight: how much the best first-pass score adds, in logits.
        mean: the mean nDCG@10 over the queries, with this weight.
        held_out: the mean nDCG@10 by cross-validation, where each fold is ranked with the other folds' best weight.
        first_pass: the mean nDCG@10 of the candidates in their original order.
    """

    weight: float
    mean: float
    held_out: float
    first_pass: float


def read_judged(scorer: Scorer, before: Calibration, candidates: Path, qrels: Qrels) -> Iterator[JudgedQuery]:
    """Score each query's candidates in a file with a model, and yield them with their judgments.

    Args:
        scorer: the model's scorer.
        before: the model's present calibration, which is undone to get raw scores.
        candidates: the file of candidates.
        qrels: the judgments.

    Raises:
        FormatError: the file is malformed.
    """
    for candidate_list in candidate_lists(candidates):
        texts = [f"{document.get('title') or ''} {document['text']}".strip() for document in candidate_list.documents]
        scores = scorer.score(candidate_list.query.text, texts, [(index,) for index in range(len(texts))])
        first_pass = np.array([document.get("score") or 0.0 for document in candidate_list.documents], dtype=np.float64)
        best = first_pass.max(initial=0)
        yield JudgedQuery(
            (scores.log_odds.astype(np.float64) - before.offset) / before.scale,
            first_pass / best if best > 0 else np.zeros_like(first_pass),
            [document["id"] for document in candidate_list.documents],
            dict(qrels.judgments.get(candidate_list.query.query_id, {})),
        )


def fit_judged(judged: Sequence[JudgedQuery]) -> Calibration:
    """Fit the map from raw scores to logits on candidates with relevance judgments.

    Raises:
        EvaluationError: all scored candidates are relevant or none is, or relevant ones do not score higher.
    """
    raw = np.concatenate([query_scores.raw for query_scores in judged]) if judged else np.zeros(0)
    is_relevant = (
        np.concatenate([query_scores.is_relevant for query_scores in judged]) if judged else np.zeros(0, dtype=bool)
    )
    scored = np.isfinite(raw)
    return fit_calibration(raw[scored].astype(np.float32), is_relevant[scored])


def choose_weight(judged: Sequence[JudgedQuery], calibration: Calibration) -> FirstPassWeight:
    """Choose the weight with the best mean nDCG@10 over the queries that have a relevant document.

    Args:
        judged: the development set.
        calibration: the map from raw scores to logits.

    Raises:
        EvaluationError: fewer queries than folds have a relevant document.
    """
    able = [
        query_scores
        for query_scores in judged
        if any(grade > 0 for grade in query_scores.relevance.values()) and query_scores.doc_ids
    ]
    if len(able) < FOLDS:
        reason = f"{len(able)} queries have candidates and a relevant document; {FOLDS} are needed to choose a weight"
        raise EvaluationError(reason)
    values = np.array([[query_scores.ndcg(calibration, weight) for query_scores in able] for weight in WEIGHTS])
    folds = np.arange(len(able)) % FOLDS
    held_out = [values[values[:, folds != fold].mean(axis=1).argmax(), folds == fold] for fold in range(FOLDS)]
    best = int(values.mean(axis=1).argmax())
    return FirstPassWeight(
        WEIGHTS[best],
        float(values[best].mean()),
        float(np.concatenate(held_out).mean()),
        float(np.mean([ndcg(query_scores.doc_ids, query_scores.relevance) for query_scores in able])),
    )


def after_vectors(
    judged: Sequence[JudgedQuery], by_vectors: Sequence[JudgedQuery], card: ModelCard, depth: int
) -> list[JudgedQuery]:
    """Return the candidates as a cross-encoder gets them in ``vectors-mono``, to choose the vectors' weight.

    They are ordered by the vectors and the first pass; candidates below the depth have no score.

    Args:
        judged: the development set, with the cross-encoder's scores.
        by_vectors: the same queries, with the encoder's scores.
        card: the encoder's card.
        depth: how many candidates the cross-encoder reads.
    """
    return [_rerank_after_vectors(*pair, card, depth) for pair in zip(judged, by_vectors, strict=True)]


def _rerank_after_vectors(mono: JudgedQuery, vectors: JudgedQuery, card: ModelCard, depth: int) -> JudgedQuery:
    logits = card.calibration.scale * vectors.raw + card.calibration.offset
    logits = np.where(np.isnan(logits), -np.inf, logits)
    order = np.argsort(-(logits + card.first_pass_weight * vectors.first_pass), kind="stable")
    raw = np.where(np.arange(len(order)) < depth, mono.raw[order], np.nan)
    vector_logits = np.where(np.isinf(logits), 0.0, logits)[order]
    return JudgedQuery(raw, vector_logits, [mono.doc_ids[index] for index in order], mono.relevance)


def fit_calibration(raw: npt.NDArray[np.float32], is_relevant: npt.NDArray[np.bool_]) -> Calibration:
    """Return the scale and offset of greatest likelihood, so that a logit's sigmoid is a probability (Platt 1999).

    This is logistic regression on one variable by Newton's method. The targets are Platt's, (n+ + 1) / (n+ + 2) and
    1 / (n- + 2), so that the scale stays finite even on a small or separable set.

    Args:
        raw: raw scores ``(n,)``.
        is_relevant: judgments ``(n,)``.

    Raises:
        EvaluationError: all pairs are relevant or none is, or relevant pairs do not score higher.
    """
    positives, negatives = int(is_relevant.sum()), int((~is_relevant).sum())
    if not positives or not negatives:
        raise EvaluationError(f"calibration needs relevant and other pairs; there are {positives} and {negatives}")
    targets = np.where(is_relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    center, spread = float(raw.mean()), float(raw.std()) or 1.0
    inputs = np.stack([(raw.astype(np.float64) - center) / spread, np.ones(len(raw))], axis=1)
    weights = np.zeros(2, dtype=np.float64)
    for _ in range(STEPS):
        weights += _newton_step(inputs, targets, weights)
    scale = float(weights[0]) / spread
    if not scale > 0:
        raise EvaluationError(
            "relevant pairs do not score higher than the others on the development set: check the judgments"
        )
    return Calibration(scale, float(weights[1]) - scale * center)


def _newton_step(
    inputs: npt.NDArray[np.float64], targets: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    probabilities = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
    curvature = (inputs * (probabilities * (1 - probabilities))[:, None]).T @ inputs + RIDGE * np.eye(2)
    return np.linalg.solve(curvature, inputs.T @ (targets - probabilities)).astype(np.float64)
