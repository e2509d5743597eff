"""Choose Birch's weights by cross-validation: learn them on some queries, and apply them to others.

Akkalyoncu Yilmaz et al., EMNLP 2019, section 4: a grid over a, w2 and w3, in steps of .1; the setting with the highest
AP on the training folds ranks the queries of the held-out fold. Nothing is scored here: the scores of the best
sentences come from a run's side file.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.evaluation.records import QueryRecord
from osrerank.stages.sentences import KEPT, interpolate
from osrerank.types import Qrels, Run, ScoredDocument
from osrerank.types.values import BM25

STAGE = "sentences"
DECIMALS = 4
"""AP is compared to this many decimals, with which trec_eval prints it."""
TENTHS = tuple(tenth / 10 for tenth in range(11))
Floats = npt.NDArray[np.float64]
Choice = TypeVar("Choice")
"""The type of the settings that a cross-validation chooses from."""


@dataclass(frozen=True, slots=True, order=True)
class Weights:
    """A point of the grid. Points sort by preference at equal AP: the lower weight of the second sentence comes first.

    Attributes:
        second: the weight of the second best sentence; the best one's weight is 1.
        a: the share of the first pass.
        third: the weight of the third best sentence.
    """

    second: float
    a: float
    third: float

    @property
    def sentences(self) -> tuple[float, float, float]:
        """The weights of the three best sentences."""
        return (1.0, self.second, self.third)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A query's candidates with the scores that the grid combines.

    Attributes:
        query_id: the query.
        doc_ids: the document ids in first-pass order.
        first_pass: the first pass's scores ``(n,)``, on the scale on which `SentenceStage` adds them.
        best: the scores of each document's three best sentences ``(n, 3)``, best first; NaN if it has fewer.
    """

    query_id: str
    doc_ids: tuple[str, ...]
    first_pass: Floats
    best: Floats

    @classmethod
    def of(cls, record: QueryRecord, *, scores: str) -> "Evidence":
        """Make the evidence from a record of a run that was reranked by sentences.

        Args:
            record: a line of the run's side file.
            scores: which scores the grid combines, ``"logit"`` or ``"probability"``.
        """
        candidates = sorted(record.fields["candidates"], key=lambda candidate: candidate["first_pass"]["rank"])
        names = [scores, *(f"{scores}_{number}" for number in range(2, KEPT + 1))]
        marks = [candidate["stages"].get(STAGE, {}) for candidate in candidates]
        return cls(
            record.query_id,
            tuple(candidate["doc_id"] for candidate in candidates),
            np.array(
                [candidate["first_pass"].get(BM25, candidate["first_pass"]["score"]) for candidate in candidates],
                dtype=np.float64,
            ),
            np.array([[mark.get(name, np.nan) for name in names] for mark in marks]).reshape(len(candidates), KEPT),
        )

    def order(self, weights: Weights) -> npt.NDArray[np.intp]:
        """Return document indices from best to worst: documents with sentences, then the others in their old order."""
        keys = interpolate(self.first_pass, self.best, weights.a, weights.sentences)
        return np.lexsort((-keys, np.isnan(self.best[:, 0])))


def read_evidence(records: Iterable[QueryRecord], *, scores: str) -> list[Evidence]:
    """Read the records of a run that was reranked by sentences.

    Args:
        records: the records in the run's side file.
        scores: ``"logit"`` or ``"probability"``.

    Raises:
        EvaluationError: no document of the run has scores of sentences.
    """
    evidence = [Evidence.of(record, scores=scores) for record in records]
    if all(np.isnan(query_evidence.best).all() for query_evidence in evidence):
        fix = "make it with osrerank run --sentences a=0.5"
        raise EvaluationError(f"the run was not reranked by sentences, so there is nothing to learn from: {fix}")
    return evidence


@dataclass(frozen=True, slots=True)
class Fold(Generic[Choice]):
    """The setting that was learned for a fold.

    Attributes:
        held_out: the fold's queries.
        weights: the setting that is best on all other folds' queries.
        training: the mean AP of this setting on the other folds' queries.
        test: the mean AP of this setting on the fold's own queries.
    """

    held_out: tuple[str, ...]
    weights: Choice
    training: float
    test: float


def grid(sentences: int, shares: Sequence[float] = TENTHS) -> tuple[Weights, ...]:
    """Return the settings to try, in the order of preference at equal AP.

    Args:
        sentences: how many of the best sentences count: 1, 2 or 3 (the paper's 1S, 2S, 3S).
        shares: the values that a and each weight may take.
    """
    second = shares if sentences > 1 else (0.0,)
    third = shares if sentences > 2 else (0.0,)
    return tuple(sorted(Weights(w2, a, w3) for a, w2, w3 in itertools.product(shares, second, third)))


def precisions(evidence: Sequence[Evidence], qrels: Qrels, settings: Sequence[Weights]) -> dict[str, Floats]:
    """Return each judged query's AP under each setting, ``(n_settings,)``; queries without judgments are left out."""
    return {
        query_evidence.query_id: np.array([_average_precision(query_evidence, judged, weights) for weights in settings])
        for query_evidence in evidence
        if (judged := qrels.judgments.get(query_evidence.query_id)) is not None
    }


def cross_validate(
    by_query: Mapping[str, Floats], folds: Sequence[Sequence[str]], settings: Sequence[Choice]
) -> list[Fold[Choice]]:
    """Choose each fold's setting by the mean AP over the queries of all other folds.

    Args:
        by_query: query_id -> AP under each setting ``(n_settings,)``.
        folds: the queries of each fold; those without an AP are ignored.
        settings: the settings, in the order of preference at equal AP, which is compared to four decimals.

    Raises:
        EvaluationError: a fold has no queries to learn from, or none to hold out.
    """
    learned = []
    for number, fold in enumerate(folds, start=1):
        held_out = [query_id for query_id in fold if query_id in by_query]
        training = [
            by_query[query_id] for other in folds if other is not fold for query_id in other if query_id in by_query
        ]
        if not held_out or not training:
            missing_part = "held out" if not held_out else "to learn from"
            raise EvaluationError(f"fold {number} has no judged query {missing_part}; check the folds' query ids")
        means = np.mean(training, axis=0)
        chosen = int(np.argmax(np.round(means, DECIMALS)))  # the first of equal ones
        test = float(np.mean([by_query[query_id][chosen] for query_id in held_out]))
        learned.append(Fold(tuple(held_out), settings[chosen], float(means[chosen]), test))
    return learned


def held_out_run(evidence: Iterable[Evidence], folds: Iterable[Fold[Weights]], name: str) -> Run:
    """Return the run in which every query is ranked with the weights learned without it."""
    weights = {query_id: fold.weights for fold in folds for query_id in fold.held_out}
    rankings = {}
    for query_evidence in evidence:
        if query_evidence.query_id in weights:
            order = query_evidence.order(weights[query_evidence.query_id])
            rankings[query_evidence.query_id] = tuple(
                ScoredDocument(query_evidence.doc_ids[index], float(len(order) - rank))
                for rank, index in enumerate(order)
            )
    return Run(rankings, name)


def by_share(by_query: Mapping[str, Floats], settings: Sequence[Weights], sentences: int) -> list[tuple[float, float]]:
    """Return, for each a, the highest mean AP over all queries that any weights of this many sentences reach."""
    means = np.mean(list(by_query.values()), axis=0)
    best: dict[float, float] = {}
    for weights, mean in zip(settings, means, strict=True):
        if not any(weights.sentences[sentences:]):
            best[weights.a] = max(float(mean), best.get(weights.a, 0.0))
    return sorted(best.items())


def _average_precision(evidence: Evidence, judged: Mapping[str, int], weights: Weights) -> float:
    """Return the AP of a query under a setting; relevant documents that are not candidates count as missed."""
    n_relevant = sum(relevance > 0 for relevance in judged.values())
    if not n_relevant:
        return 0.0
    relevant = np.array([judged.get(doc_id, 0) > 0 for doc_id in evidence.doc_ids])
    ranks = np.flatnonzero(relevant[evidence.order(weights)]) + 1
    return float((np.arange(1, len(ranks) + 1) / ranks).sum() / n_relevant)
