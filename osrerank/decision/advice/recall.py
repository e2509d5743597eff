"""What share of the relevant documents the sources of candidates find: none of the others can come up."""

from collections.abc import Sequence

from osrerank.client import Client
from osrerank.decision.advice.sample import Found
from osrerank.errors import MissingDependencyError, ScoringError, VectorsError, WorkerError
from osrerank.evaluation.sources import SourceRecall, recall_of_sources
from osrerank.types import Qrels

DEPTH = 100
"""Candidates of each source."""
FIRST_PASS, VECTORS = "first pass", "vectors"


def recall_by_source(client: Client, index: str, found: Sequence[Found], qrels: Qrels) -> tuple[SourceRecall, ...]:
    """Return the recall of the first pass's candidates and, where the index has vectors, of theirs and of both.

    Args:
        client: of the index.
        index: its name.
        found: the sample.
        qrels: its judgments.
    """
    sources = {FIRST_PASS: {one.query.query_id: one.first_pass() for one in found}}
    try:
        sources[VECTORS] = {one.query.query_id: _nearest(client, index, one.query.text) for one in found}
    except (VectorsError, ScoringError, WorkerError, MissingDependencyError):
        return tuple(recall_of_sources(sources, qrels, (DEPTH,)))[:1]
    return tuple(recall_of_sources(sources, qrels, (DEPTH,)))


def _nearest(client: Client, index: str, query: str) -> list[str]:
    clause = client.vector_query(query, index, candidates={"vectors": DEPTH})
    hits = client.search(clause, index=index, size=DEPTH, _source=False)["hits"]["hits"]
    return [hit["_id"] for hit in hits]
