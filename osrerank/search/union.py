"""A first pass with a second source of candidates: documents whose vectors are nearest to the query's."""

import logging
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from opensearchpy import TransportError
from opensearchpy.exceptions import HTTP_EXCEPTIONS
from prometheus_client import Counter

from osrerank.errors import MissingDependencyError, ResponseFormatError, ScoringError, VectorsError, WorkerError
from osrerank.options.candidates import Candidates
from osrerank.retrieval.conditions import conditions
from osrerank.retrieval.found_vectors import FoundVectors
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.union import Sources, Union, united
from osrerank.retrieval.vector_field import VectorField, refusal_of
from osrerank.retrieval.vector_search import obstacle, two_searches
from osrerank.search.call import SearchCall
from osrerank.search.step import Scoring, SearchRequest
from osrerank.service import RerankService

FOUND = Counter("osrerank_candidates_total", "Candidates of searches with two sources, by source.", ["source"])
WITHOUT = Counter("osrerank_vector_searches_failed_total", "Searches without the vectors that they asked for.")

UNUSABLE = (VectorsError, ScoringError, WorkerError, MissingDependencyError, ResponseFormatError)
"""What a search goes on without vectors after."""

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """A call with what its sources found, and the first pass's response."""

    call: SearchCall
    response: Any


def two_sources(
    reranker: RerankService, call: SearchCall, candidates: Candidates, index: Any, fields: FoundVectors
) -> Generator[SideRequest | SearchRequest | Scoring, Any, Found]:
    """Yield the steps that find candidates by the first pass and by vectors.

    Where there can be no search by vectors the first pass is alone, and the call knows why.

    Args:
        reranker: has the model that makes the query's vector.
        call: of the first pass.
        candidates: the options.
        index: the caller's.
        fields: finds the field that has the vectors.

    Raises:
        TransportError: the first pass's own, as a search by itself would raise it.
        VectorsError, ScoringError, WorkerError, MissingDependencyError: there can be no search by vectors, and
            ``on_failure`` is ``"raise"``.
    """
    try:
        return (yield from _both(reranker, call, candidates, index, fields))
    except UNUSABLE as error:
        if not call.may_go_without:
            raise
        reason = str(error)
    fields.forget(index, candidates.field)
    WITHOUT.inc()
    logger.warning("[no-vectors] search of %s without vectors: %s", index or "all indices", reason)
    call = call.with_sources(Sources(reason=reason))
    return Found(call, (yield SearchRequest(call)))


def _both(
    reranker: RerankService, call: SearchCall, candidates: Candidates, index: Any, fields: FoundVectors
) -> Generator[SideRequest | Scoring, Any, Found]:
    """Yield the steps of both searches.

    Raises:
        VectorsError, ScoringError: there can be no search by vectors.
        TransportError: the first pass's own.
    """
    if why := obstacle(call.body, call.params):
        raise VectorsError(why, kind="request")
    field = yield from fields.of(index, candidates.field)
    vector = yield Scoring(partial(_query_vector, reranker, field, call.query_text))
    clause = field.query(vector, candidates.vectors, conditions(call.body))
    searches = two_searches(call.body, call.params, field, clause, candidates.vectors)
    try:
        answer = yield SideRequest("POST", path_of(index, "_msearch"), searches.lines, searches.params)
    except TransportError as error:
        if not isinstance(error.status_code, int):  # the cluster was not reached
            raise
        raise VectorsError(f"the request for two searches was refused ({error})", kind="request") from error
    first, second = answer["responses"]
    if "error" in first:
        raise _raised(first)
    if "error" in second:
        raise refusal_of(second["error"]) or VectorsError(
            f"the search by vectors failed: {_reason(second)}", kind="field"
        )
    union = united(first, second, field, call.depth, searches.added)
    _count(union)
    return Found(call.with_sources(Sources(union)), first)


def vector_query(
    reranker: RerankService, text: str, index: Any, candidates: Candidates, fields: FoundVectors
) -> Generator[SideRequest | Scoring, Any, dict[str, Any]]:
    """Yield the steps that make the query for the documents whose vectors are nearest to a text's.

    Raises:
        VectorsError, ScoringError, WorkerError, MissingDependencyError: there can be no search by vectors.
    """
    field = yield from fields.of(index, candidates.field)
    vector = yield Scoring(partial(_query_vector, reranker, field, text))
    return field.query(vector, candidates.vectors)


def _query_vector(reranker: RerankService, field: VectorField, text: str) -> Any:
    """Return a query's vector, of a model that the field's vectors can be compared with.

    Raises:
        VectorsError: the model makes none, or others.
        ScoringError: it cannot be loaded, or fails.
    """
    vectors = reranker.text_vectors()
    field.check(vectors.model, vectors.dimension)
    return vectors.query(text)


def _raised(response: Mapping[str, Any]) -> Exception:
    """Return the error of one of several searches as opensearch-py raises that of a search by itself."""
    status, error = response.get("status", 500), response["error"]
    kind = HTTP_EXCEPTIONS.get(status, TransportError)
    return kind(status, error.get("type", "") if isinstance(error, Mapping) else str(error), dict(response))


def _reason(response: Mapping[str, Any]) -> str:
    error = response["error"]
    return str(error.get("reason") or error) if isinstance(error, Mapping) else str(error)


def _count(union: Union) -> None:
    first = len(union.sources) - union.only - union.both
    for source, count in (("first_pass", first), ("vectors", union.only), ("both", union.both)):
        FOUND.labels(source).inc(count)
