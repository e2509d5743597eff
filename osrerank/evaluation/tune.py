"""Choose by cross-validation how Birch weights the scores of a document's best sentences against its BM25 score.

This is the method of Akkalyoncu Yilmaz et al., EMNLP 2019, section 4. A document's score is
``a * bm25 + (1 - a) * (s1 + w2 * s2 + w3 * s3)``, where s1 to s3 are the scores of its three best sentences. The
weights a, w2 and w3 come from a grid with steps of .1. Those with the highest mean AP on the training folds rank the
queries of the held-out fold. The sentence scores come from a run's side file (`evaluation.side_file`), so no model runs
here.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.values import score_by_rank
from osrerank.stages.sentences import REPORTED_SENTENCES, interpolate
from osrerank.types import Qrels, Run
from osrerank.types.values import BM25_SCORE

STAGE = "sentences"
"""The stage that wrote the sentence scores."""
DECIMALS = 4
"""The number of decimals to which means are rounded before they are compared, as many as trec_eval prints."""
GRID_VALUES = tuple(step / 10 for step in range(11))
"""The values 0, .1, ..., 1 of each weight."""
Floats = npt.NDArray[np.float64]
Setting = TypeVar("Setting")
"""The type of the settings that cross-validation chooses from."""


@dataclass(frozen=True, slots=True, order=True)
class Weights:
    """A point of the grid. At equal AP, the smaller point is preferred, compared by ``w2``, then ``a``, then ``w3``.

    Attributes:
        w2: the weight of the second-best sentence. The weight of the best sentence is 1.
        a: the weight of the first pass's score, in [0, 1]. The weight of the sentences' weighted sum is 1 - a.
        w3: the weight of the third-best sentence.
    """

    w2: float
    a: float
    w3: float

    @property
    def sentence_weights(self) -> tuple[float, float, float]:
        """The weights of the three best sentences."""
        return (1.0, self.w2, self.w3)


@dataclass(frozen=True, slots=True)
class SentenceScores:
    """The scores that the weights combine, for the candidates of a query.

    Attributes:
        query_id: the query's id.
        doc_ids: the document ids in first-pass order.
        first_pass_scores: the first-pass scores ``(n,)``, without the factor by which some engines multiply BM25.
        sentence_scores: the scores of each document's three best sentences ``(n, 3)``, best first. Documents with
            fewer sentences have NaN.
    """

    query_id: str
    doc_ids: tuple[str, ...]
    first_pass_scores: Floats
    sentence_scores: Floats

    @classmethod
    def from_record(cls, record: QueryRecord, *, kind: str) -> "SentenceScores":
        """Extract the scores from a record of a run that was reranked by sentences.

        ``kind`` is ``"logit"`` or ``"probability"``.
        """
        candidates = sorted(record.fields["candidates"], key=lambda candidate: candidate["first_pass"]["rank"])
        doc_ids = tuple(candidate["doc_id"] for candidate in candidates)
        first_pass = [candidate["first_pass"] for candidate in candidates]
        # an entry has BM25 if the score is BM25 times a factor of the engine
        first_pass_scores = np.array([entry.get(BM25_SCORE, entry["score"]) for entry in first_pass], dtype=np.float64)
        names = [kind, *(f"{kind}_{number}" for number in range(2, REPORTED_SENTENCES + 1))]  # logit, logit_2, logit_3
        entries = [candidate["stages"].get(STAGE, {}) for candidate in candidates]
        scores = np.array([[entry.get(name, np.nan) for name in names] for entry in entries])
        scores = scores.reshape(len(candidates), REPORTED_SENTENCES)  # also if there are no candidates
        return cls(record.query_id, doc_ids, first_pass_scores, scores)

    def rank(self, weights: Weights) -> npt.NDArray[np.intp]:
        """Return document indices, best first. Documents without sentence scores come last, in first-pass order."""
        combined = interpolate(self.first_pass_scores, self.sentence_scores, weights.a, weights.sentence_weights)
        has_no_sentences = np.isnan(self.sentence_scores[:, 0])
        return np.lexsort((-combined, has_no_sentences))  # the last key counts first


def read_sentence_scores(records: Iterable[QueryRecord], *, kind: str) -> list[SentenceScores]:
    """Extract the sentence scores of each query of a run, as `SentenceScores.from_record` does.

    Raises:
        EvaluationError: no document of the run has sentence scores.
    """
    run_scores = [SentenceScores.from_record(record, kind=kind) for record in records]
    if all(np.isnan(query_scores.sentence_scores).all() for query_scores in run_scores):
        raise EvaluationError(
            "the run has no sentence scores to learn weights from; create it with osrerank run --sentences a=0.5"
        )
    return run_scores


@dataclass(frozen=True, slots=True)
class Fold(Generic[Setting]):
    """A fold, and the setting that was chosen for it by the queries of the other folds.

    Attributes:
        held_out_ids: the ids of the fold's queries.
        setting: the setting with the highest ``training_mean``, to four decimals.
        training_mean: the mean of the measure over the queries of the other folds.
        held_out_mean: the mean of the measure over the fold's queries.
    """

    held_out_ids: tuple[str, ...]
    setting: Setting
    training_mean: float
    held_out_mean: float


def build_grid(n_sentences: int, values: Sequence[float] = GRID_VALUES) -> tuple[Weights, ...]:
    """Return the weights to try, in the order of preference at equal AP.

    ``n_sentences`` is the number of best sentences that count: 1, 2 or 3 (the paper's 1S, 2S, 3S). ``values`` are tried
    for a, w2 and w3.
    """
    w2_values = values if n_sentences > 1 else (0.0,)
    w3_values = values if n_sentences > 2 else (0.0,)
    return tuple(sorted(Weights(w2, a, w3) for a, w2, w3 in itertools.product(values, w2_values, w3_values)))


def compute_average_precisions(
    run_scores: Sequence[SentenceScores], qrels: Qrels, grid: Sequence[Weights]
) -> dict[str, Floats]:
    """Return query_id -> AP with each point of the grid ``(n_points,)``. Queries without judgments are left out."""
    ap_by_query = {}
    for query_scores in run_scores:
        judged = qrels.judgments.get(query_scores.query_id)
        if judged is not None:
            ap_values = [_compute_average_precision(query_scores, judged, weights) for weights in grid]
            ap_by_query[query_scores.query_id] = np.array(ap_values)
    return ap_by_query


def cross_validate(
    query_values: Mapping[str, Floats], folds: Sequence[Sequence[str]], settings: Sequence[Setting]
) -> list[Fold[Setting]]:
    """Choose a setting for each fold: the one with the highest mean of a measure over the queries of the other folds.

    Args:
        query_values: for each query, the measure's value with each setting ``(n_settings,)``.
        folds: the query ids of each fold. Queries without values are ignored.
        settings: the settings. If several have the same mean to four decimals, the first one is chosen.

    Raises:
        EvaluationError: a fold has no queries with values, or all other folds have none.
    """
    learned_folds = []
    for number, fold_ids in enumerate(folds, start=1):
        held_out_ids = [query_id for query_id in fold_ids if query_id in query_values]
        other_ids = [query_id for other_fold in folds if other_fold is not fold_ids for query_id in other_fold]
        training_values = [query_values[query_id] for query_id in other_ids if query_id in query_values]
        if not held_out_ids or not training_values:
            subject = f"the folds other than fold {number} have" if held_out_ids else f"fold {number} has"
            raise EvaluationError(f"{subject} no judged query; use the query ids of the judgments in the folds")
        means = np.mean(training_values, axis=0)
        best_index = int(np.argmax(np.round(means, DECIMALS)))
        fold = Fold(
            tuple(held_out_ids),
            setting=settings[best_index],
            training_mean=float(means[best_index]),
            held_out_mean=float(np.mean([query_values[query_id][best_index] for query_id in held_out_ids])),
        )
        learned_folds.append(fold)
    return learned_folds


def build_held_out_run(run_scores: Iterable[SentenceScores], folds: Iterable[Fold[Weights]], name: str) -> Run:
    """Rank each query with the weights that were chosen on the other folds."""
    weights_by_query = {query_id: fold.setting for fold in folds for query_id in fold.held_out_ids}
    rankings = {}
    for query_scores in run_scores:
        weights = weights_by_query.get(query_scores.query_id)
        if weights is not None:
            ranked_ids = [query_scores.doc_ids[index] for index in query_scores.rank(weights)]
            rankings[query_scores.query_id] = score_by_rank(ranked_ids)
    return Run(rankings, name)


def find_max_ap_by_a(
    ap_by_query: Mapping[str, Floats], grid: Sequence[Weights], n_sentences: int
) -> list[tuple[float, float]]:
    """Return pairs (a, highest mean AP of the weights with this a), by rising a.

    ``ap_by_query`` is the result of `compute_average_precisions`. Weights that use more than the best ``n_sentences``
    sentences are ignored.
    """
    means = np.mean(list(ap_by_query.values()), axis=0)
    max_ap_by_a: dict[float, float] = {}
    for weights, mean in zip(grid, means, strict=True):
        uses_more_sentences = any(weights.sentence_weights[n_sentences:])
        if not uses_more_sentences:
            max_ap_by_a[weights.a] = max(float(mean), max_ap_by_a.get(weights.a, 0.0))
    return sorted(max_ap_by_a.items())


def _compute_average_precision(query_scores: SentenceScores, judged: Mapping[str, int], weights: Weights) -> float:
    """Return a query's AP. A relevant document that is not a candidate counts as precision 0."""
    n_relevant = sum(relevance > 0 for relevance in judged.values())
    if n_relevant == 0:
        return 0.0
    is_relevant = np.array([judged.get(doc_id, 0) > 0 for doc_id in query_scores.doc_ids])
    relevant_ranks = np.flatnonzero(is_relevant[query_scores.rank(weights)]) + 1
    precisions = np.arange(1, len(relevant_ranks) + 1) / relevant_ranks
    return float(precisions.sum() / n_relevant)
