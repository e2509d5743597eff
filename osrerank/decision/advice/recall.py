"""What share of the relevant documents the sources of candidates find: none of the others can come up."""

from collections.abc import Sequence

from osrerank.client import Client
from osrerank.decision.advice.sample import Found
from osrerank.evaluation.sources import SourceRecall, recall_of_sources
from osrerank.types import Qrels

DEPTH = 100
"""Candidates of each source."""


def recall_by_source(
    client: Client,  # noqa: ARG001 - the caller's
    index: str,  # noqa: ARG001 - likewise
    found: Sequence[Found],
    qrels: Qrels,
) -> tuple[SourceRecall, ...]:
    """Return the recall of the first pass's candidates.

    Args:
        client: of the index.
        index: its name.
        found: the sample.
        qrels: its judgments.
    """
    sources = {"first pass": {one.query.query_id: one.first_pass() for one in found}}
    return tuple(recall_of_sources(sources, qrels, (DEPTH,)))[:1]
