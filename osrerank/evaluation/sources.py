"""Recall of sources of candidates, each by itself and together: what none of them finds, no reranker can order."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from osrerank.errors import EvaluationError
from osrerank.types import Qrels

UNION = "union"


@dataclass(frozen=True, slots=True)
class SourceRecall:
    """A source's recall at one depth.

    Attributes:
        source: its name; ``union`` for all of them together.
        depth: how many documents of each source count.
        candidates: documents of a query, mean over the queries; each once in the union.
        recall: share of a query's relevant documents that are among them, in [0, 1], mean over the queries.
    """

    source: str
    depth: int
    candidates: float
    recall: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def recall_of_sources(
    found: Mapping[str, Mapping[str, Sequence[str]]], qrels: Qrels, depths: Sequence[int], *, relevance_level: int = 1
) -> list[SourceRecall]:
    """Return the recall of each source and of their union at each depth.

    Args:
        found: source -> query_id -> document ids, best first; a query that a source lacks found nothing there.
        qrels: the judgments.
        depths: how many documents of each source count.
        relevance_level: least relevance of a relevant document.

    Raises:
        EvaluationError: no query of a source has a relevant document in the judgments.
    """
    relevant = {
        query_id: {doc_id for doc_id, grade in judged.items() if grade >= relevance_level}
        for query_id, judged in qrels.judgments.items()
    }
    asked = {query_id for one in found.values() for query_id in one}
    queries = sorted(query_id for query_id in asked if relevant.get(query_id))
    if not queries:
        raise EvaluationError("no query of the runs has a relevant document in the judgments")
    return [
        _recall(name, depth, [one.get(query_id, ()) for one in members for query_id in queries], relevant, queries)
        for name, members in (*((name, [one]) for name, one in found.items()), (UNION, list(found.values())))
        for depth in depths
    ]


def _recall(
    name: str, depth: int, lists: Sequence[Sequence[str]], relevant: Mapping[str, set[str]], queries: Sequence[str]
) -> SourceRecall:
    """Return a source's recall; ``lists`` has those of each of its members, queries in order."""
    pools = [
        {doc_id for one in lists[place :: len(queries)] for doc_id in one[:depth]} for place in range(len(queries))
    ]
    shares = [
        len(pool & relevant[query_id]) / len(relevant[query_id]) for pool, query_id in zip(pools, queries, strict=True)
    ]
    return SourceRecall(name, depth, fmean(map(len, pools)), fmean(shares))
