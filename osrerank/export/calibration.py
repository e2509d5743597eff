"""Fit a model's calibration, and choose the weight of the first-pass scores, on judged queries with candidates.

Candidates are the documents that the first pass, such as BM25, found. A model's raw score becomes a logit by its
calibration, ``scale * score + offset``. A document's final score is its logit plus the weight times its first-pass
score.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.evaluation.basic import ndcg
from osrerank.formats.candidates import candidate_lists
from osrerank.scoring.card import Calibration, ModelCard
from osrerank.thresholds.platt import fit_platt
from osrerank.types import Qrels, Scorer
from osrerank.types.scores import single_documents

FIRST_PASS_WEIGHTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""The weights to choose from. With 2.0, the document with the best first-pass score gets 2 added to its logit."""
FOLDS = 5
"""The number of folds of the weight's cross-validation."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """A query's candidates with their scores and judgments.

    Attributes:
        raw_scores: the model's scores before calibration ``(n,)``. A candidate without a score has NaN.
        first_pass_scores: the first-pass scores ``(n,)``, scaled so that the query's best score is 1. They are zeros if
            the best score is not positive. `simulate_vectors_mono` puts a bi-encoder's logits in their place.
        doc_ids: the ids of the n candidates.
        relevance: the grade of each judged document, such as ``{"d1": 2, "d7": 0}``. A document without a judgment
            counts as not relevant.
    """

    raw_scores: Floats
    first_pass_scores: Floats
    doc_ids: Sequence[str]
    relevance: dict[str, int]

    @property
    def is_relevant(self) -> npt.NDArray[np.bool_]:
        """Whether each candidate is relevant ``(n,)``."""
        return np.array([self.relevance.get(doc_id, 0) > 0 for doc_id in self.doc_ids], dtype=bool)

    def ndcg(self, calibration: Calibration, weight: float) -> float:
        """Return nDCG@10 of the candidates, ordered by their logits plus ``weight`` times their first-pass scores."""
        raw_scores = np.where(np.isnan(self.raw_scores), -np.inf, self.raw_scores)
        final_scores = calibration.scale * raw_scores + weight * self.first_pass_scores  # the offset changes no order
        order = np.argsort(-final_scores, kind="stable")
        return ndcg([self.doc_ids[index] for index in order], self.relevance)


@dataclass(frozen=True, slots=True)
class FirstPassWeight:
    """The weight of the first pass that has the best mean nDCG@10 on a development set.

    Attributes:
        weight: one of `FIRST_PASS_WEIGHTS`.
        ndcg: the mean nDCG@10 with this weight, on the queries on which it was chosen.
        cross_validated_ndcg: the mean nDCG@10 if each fold uses the weight that is best on the other folds.
        first_pass_ndcg: the mean nDCG@10 of the candidates in their original order.
    """

    weight: float
    ndcg: float
    cross_validated_ndcg: float
    first_pass_ndcg: float


def score_judged_queries(
    scorer: Scorer, calibration: Calibration, candidates: Path, qrels: Qrels
) -> Iterator[JudgedQuery]:
    """Score the candidates of each query in a file, and yield them with their judgments.

    The scorer's logits are turned back into raw scores by its current ``calibration``.

    Raises:
        FormatError: the file is malformed.
    """
    for candidate_list in candidate_lists(candidates):
        texts = [f"{document.get('title') or ''} {document['text']}".strip() for document in candidate_list.documents]
        scores = scorer.score(candidate_list.query.text, texts, single_documents(len(texts)))
        first_pass = np.array([document.get("score") or 0.0 for document in candidate_list.documents], dtype=np.float64)
        best_score = first_pass.max(initial=0)
        scaled_first_pass = first_pass / best_score if best_score > 0 else np.zeros_like(first_pass)
        yield JudgedQuery(
            raw_scores=(scores.log_odds.astype(np.float64) - calibration.offset) / calibration.scale,
            first_pass_scores=scaled_first_pass,
            doc_ids=[document["id"] for document in candidate_list.documents],
            relevance=dict(qrels.judgments.get(candidate_list.query.query_id, {})),
        )


def calibrate_on_queries(queries: Sequence[JudgedQuery]) -> Calibration:
    """Fit the calibration on the candidates of judged queries (`fit_calibration`).

    Raises:
        EvaluationError: all candidates are relevant, no candidate is relevant, or relevant ones do not score higher.
    """
    # without queries, the empty arrays remain
    raw_scores = np.concatenate([np.zeros(0), *(query.raw_scores for query in queries)])
    is_relevant = np.concatenate([np.zeros(0, dtype=bool), *(query.is_relevant for query in queries)])
    is_scored = np.isfinite(raw_scores)
    return fit_calibration(raw_scores[is_scored].astype(np.float32), is_relevant[is_scored])


def choose_weight(queries: Sequence[JudgedQuery], calibration: Calibration) -> FirstPassWeight:
    """Choose the weight that has the best mean nDCG@10 over the queries with a relevant document.

    Raises:
        EvaluationError: fewer queries than folds have a relevant document.
    """
    usable = [query for query in queries if query.doc_ids and any(grade > 0 for grade in query.relevance.values())]
    if len(usable) < FOLDS:
        raise EvaluationError(
            f"choosing a weight needs {FOLDS} queries with candidates and a relevant document, and there are only "
            f"{len(usable)}; judge more queries"
        )
    ndcgs = np.array(  # (weights, queries)
        [[query.ndcg(calibration, weight) for query in usable] for weight in FIRST_PASS_WEIGHTS]
    )
    folds = np.arange(len(usable)) % FOLDS  # the number of each query's fold
    fold_ndcgs = []
    for fold in range(FOLDS):
        best_in_other_folds = ndcgs[:, folds != fold].mean(axis=1).argmax()
        fold_ndcgs.append(ndcgs[best_in_other_folds, folds == fold])
    best_index = int(ndcgs.mean(axis=1).argmax())
    return FirstPassWeight(
        weight=FIRST_PASS_WEIGHTS[best_index],
        ndcg=float(ndcgs[best_index].mean()),
        cross_validated_ndcg=float(np.concatenate(fold_ndcgs).mean()),
        first_pass_ndcg=float(np.mean([ndcg(query.doc_ids, query.relevance) for query in usable])),
    )


def simulate_vectors_mono(
    queries: Sequence[JudgedQuery], vector_queries: Sequence[JudgedQuery], card: ModelCard, depth: int
) -> list[JudgedQuery]:
    """Simulate the pipeline ``vectors-mono``, so that `choose_weight` can choose the weight of the bi-encoder in it.

    In this pipeline, a bi-encoder ranks all candidates, and a cross-encoder ("mono") reranks the first ``depth`` of
    them. The candidates of the returned queries are ordered by the bi-encoder's logits and the first pass. Their
    ``first_pass_scores`` are the bi-encoder's logits. Candidates beyond the depth have the raw score NaN.

    Args:
        queries: the queries with the cross-encoder's scores.
        vector_queries: the same queries with the bi-encoder's scores.
        card: the bi-encoder's card.
        depth: the number of candidates that the cross-encoder scores.
    """
    simulated = []
    for mono_query, vector_query in zip(queries, vector_queries, strict=True):
        logits = card.calibration.scale * vector_query.raw_scores + card.calibration.offset
        logits = np.where(np.isnan(logits), -np.inf, logits)
        order = np.argsort(-(logits + card.first_pass_weight * vector_query.first_pass_scores), kind="stable")
        raw_scores = np.where(np.arange(len(order)) < depth, mono_query.raw_scores[order], np.nan)
        vector_logits = np.where(np.isinf(logits), 0.0, logits)[order]
        doc_ids = [mono_query.doc_ids[index] for index in order]
        simulated.append(JudgedQuery(raw_scores, vector_logits, doc_ids, mono_query.relevance))
    return simulated


def fit_calibration(raw_scores: npt.NDArray[np.float32], is_relevant: npt.NDArray[np.bool_]) -> Calibration:
    """Fit the scale and the offset that turn the raw scores of query-document pairs into logits by Platt scaling.

    Raises:
        EvaluationError: all pairs are relevant, no pair is relevant, or relevant pairs do not score higher.
    """
    positives, negatives = int(is_relevant.sum()), int((~is_relevant).sum())
    if not positives or not negatives:
        raise EvaluationError(
            f"{positives} candidates are relevant and {negatives} are not; calibration needs some of both"
        )
    platt = fit_platt(raw_scores, is_relevant)
    return Calibration(platt.scale, platt.offset)
