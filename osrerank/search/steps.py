"""The steps of a reranked search, without input and output.

`search_steps` yields each step - send a request, score - and is sent its result. The synchronous and the asynchronous
client perform the steps and know nothing else of a search.
"""

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from opensearchpy import TransportError

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.requests import SideRequest
from osrerank.retrieval.rm3 import expand
from osrerank.search.calibrated import Calibrations
from osrerank.search.call import NO_HITS, RerankArgument, SearchCall
from osrerank.search.step import SearchRequest, Step
from osrerank.search.ubi import UbiRecords
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.stages.ordering import NO_TEXT
from osrerank.types import Deadline


def search_steps(
    reranker: RerankService,
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    body: Any,
    params: Mapping[str, Any],
    *,
    index: Any,
    rerank: RerankArgument,
    found: FoundFields,
    vectors: SideVectors,
    calibrations: Calibrations,
    records: UbiRecords,
) -> Generator[Step, Any, Any]:
    """Yield the steps of a search, each to be answered with its result, and return the response.

    A step's ``TransportError`` is thrown into the generator. When OpenSearch refuses the request for the first pass,
    the caller's own request is sent instead and its response is marked.

    Args:
        reranker: scores.
        defaults: the options that ``rerank=True`` stands for.
        query: text, a query-DSL clause, or None for the body's.
        body: the caller's search body.
        params: the caller's URL parameters.
        index: the caller's index or indices.
        rerank: the caller's options.
        found: what is searched and read in indices whose fields nobody named.
        vectors: side indices of document vectors, if there are any.
        calibrations: what probabilities were fitted to.
        records: what users were shown, for UBI.

    Raises:
        ConfigError, ValueError: as `SearchCall.plan`.
        ScoringError: reranking failed and ``on_failure`` is ``"raise"``.
    """
    asked = Rerank.of(rerank, defaults)
    deadline = Deadline.after_ms(asked.deadline_ms if asked else None, reranker.clock)  # of the whole call
    searches_text = isinstance(query, str)

    def search(options: Rerank) -> Generator[Step, Any, Any]:
        wanted = asked is not None and options
        return _search(
            reranker,
            options,
            query,
            body,
            params,
            index=index,
            rerank=wanted,
            deadline=deadline,
            vectors=vectors,
            calibrations=calibrations,
            records=records,
        )

    if asked is None and not searches_text:
        return (yield from search(defaults))
    options = yield from with_fields(asked or defaults, index, found, searches_text=searches_text)
    answer = yield from search(options)
    if not _reads_nothing(answer):
        return answer
    again = yield from with_fields(asked or defaults, index, found, searches_text=searches_text, anew=True)
    if again != options:  # the mapping has changed
        return (yield from search(again))
    return answer if asked is None else (yield from _with_missing_fields(answer, asked, index, found))


def _search(
    reranker: RerankService,
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    body: Any,
    params: Mapping[str, Any],
    *,
    index: Any,
    rerank: RerankArgument,
    deadline: Deadline,
    vectors: SideVectors,
    calibrations: Calibrations,
    records: UbiRecords,
) -> Generator[Step, Any, Any]:
    """Yield the steps of a search whose fields are known, and return the response; arguments as `search_steps`."""
    query, rerank = yield from expand_query(defaults, query, index, params, rerank)
    thresholds = None if rerank is False else (yield from calibrations.of(defaults, index, reranker))
    call = SearchCall.plan(
        reranker, defaults, query, body, params, rerank=rerank, deadline=deadline, thresholds=thresholds
    )
    refusal: TransportError | None = None
    try:
        response = yield SearchRequest(call)
    except TransportError as error:
        if not call.may_fall_back(error):
            raise
        refusal = error
    if refusal is not None:  # outside of the handler, so that an error of this request has no second traceback
        own = SearchCall.plan(reranker, defaults, query, body, params, rerank=False)
        call = call.fall_back(own, refusal)
        response = yield SearchRequest(call)
    answer = yield from vectors.around(call, response)
    return (yield from records.after(call, answer))


def with_fields(
    options: Rerank, index: Any, found: FoundFields, *, searches_text: bool, anew: bool = False
) -> Generator[SideRequest, Any, Rerank]:
    """Yield the requests that find the fields which the options leave open, and return options that name them.

    Args:
        options: of a search.
        index: the caller's.
        found: finds them.
        searches_text: whether the query is a text that searches fields.
        anew: whether the mapping is to be read again.
    """
    if options.query_fields or (options.fields and not searches_text):
        return options.with_fields(options.fields or ())
    fields = yield from found.of(index, anew=anew)
    return options.with_fields(fields)


def _reads_nothing(answer: Any) -> bool:
    """Return whether a search found nothing, or nothing to read."""
    marks = answer.get("rerank")
    if marks is not None:
        return marks["applied"] is False and str(marks["reason"]).startswith((NO_HITS, NO_TEXT))
    total = (answer.get("hits") or {}).get("total")
    return (total.get("value") if isinstance(total, Mapping) else total) == 0


def _with_missing_fields(
    answer: Mapping[str, Any], asked: Rerank, index: Any, found: FoundFields
) -> Generator[SideRequest, Any, Mapping[str, Any]]:
    """Return a response whose reason says which of the fields that the caller named are not in the mapping."""
    named = (*(asked.query_fields or ()), *(asked.fields or ()))
    missing = (yield from found.missing(index, named)) if named else ""
    if not missing:
        return answer
    return {**answer, "rerank": {**answer["rerank"], "reason": f"{answer['rerank']['reason']}; {missing}"}}


def expand_query(
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    index: Any,
    params: Mapping[str, Any],
    rerank: RerankArgument,
) -> Generator[SideRequest, Any, tuple[str | Mapping[str, Any] | None, RerankArgument]]:
    """Yield the requests of query expansion, none unless ``rm3`` is set, and return query and options after it.

    Raises:
        ConfigError: the options cannot be used, or ``rm3`` is set and the query is not text.
    """
    options = Rerank.of(rerank, defaults)
    if options is None or options.rm3 is None:
        return query, rerank
    if not isinstance(query, str):
        raise ConfigError(
            "rm3 expands a query given as text: client.search(text, ...); for a query of your own leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    clause = yield from expand(query, index, options.rm3, params)
    text = query if options.query is None else options.query
    return clause, replace(options, query=text)
