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
from osrerank.retrieval.fields import CheckedNames, Fields, FoundNames, Wanted, named
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.mapping import leaves_of
from osrerank.retrieval.query_text import searched_fields
from osrerank.retrieval.requests import SideRequest
from osrerank.retrieval.rm3 import expand
from osrerank.search.calibrated import Calibrations
from osrerank.search.call import NO_HITS, RerankArgument, SearchCall, decoded
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

    A step's ``TransportError`` is thrown into the generator. If OpenSearch refuses the first pass's request, or
    answers it incompletely, the caller's own request is sent, too, and its response is marked.

    Args:
        reranker: scores.
        defaults: the options that ``rerank=True`` stands for.
        query: text, a query-DSL clause, or None for the body's.
        body: the caller's search body.
        params: the caller's URL parameters.
        index: the caller's index or indices.
        rerank: the caller's options.
        found: finds the fields to search and to read if nobody names them.
        vectors: side indices of document vectors, if there are any.
        calibrations: the indices' calibrations of probabilities.
        records: records for UBI what users are shown.

    Raises:
        ConfigError, ValueError: as `SearchCall.plan`.
        ScoringError: reranking failed and ``on_failure`` is ``"raise"``.
    """
    asked = Rerank.of(rerank, defaults)
    deadline = Deadline.after_ms(asked.deadline_ms if asked else None, reranker.clock)  # of the whole call

    def search(options: Rerank, fields: Fields | None = None) -> Generator[Step, Any, Any]:
        wanted = asked is not None and options
        return _search(
            reranker,
            options,
            query,
            body,
            params,
            index=index,
            rerank=wanted,
            fields=fields,
            deadline=deadline,
            vectors=vectors,
            calibrations=calibrations,
            records=records,
        )

    if asked is None and not isinstance(query, str):
        return (yield from search(defaults))
    options, fields = yield from with_fields(asked or defaults, index, found, query=query, body=body)
    answer = yield from search(options, fields)
    if _reads_nothing(answer) or found.is_outdated(index, answer):
        again = yield from with_fields(asked or defaults, index, found, query=query, body=body, anew=True)
        if again != (options, fields):  # the mapping has changed
            options, fields = again
            answer = yield from search(options, fields)
    said = answer["rerank"].get("warnings", ()) if "rerank" in answer else fields.complaints(None)
    found.warn(index, [sentence for sentence in said if sentence not in fields.warnings])
    return answer


def _search(
    reranker: RerankService,
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    body: Any,
    params: Mapping[str, Any],
    *,
    index: Any,
    rerank: RerankArgument,
    fields: Fields | None,
    deadline: Deadline,
    vectors: SideVectors,
    calibrations: Calibrations,
    records: UbiRecords,
) -> Generator[Step, Any, Any]:
    """Yield the steps of a search whose fields are known, and return the response; arguments as `search_steps`."""
    query, rerank = yield from expand_query(defaults, query, index, params, rerank, fields)
    thresholds = None if rerank is False else (yield from calibrations.of(defaults, index, reranker))
    call = SearchCall.plan(
        reranker, defaults, query, body, params, rerank=rerank, fields=fields, deadline=deadline, thresholds=thresholds
    )
    response: Any
    try:
        response = yield SearchRequest(call)
    except TransportError as error:
        if not call.loss(error):
            raise
        response = error
    if reason := call.loss(response):  # not in the handler, so that an error of this request has no second traceback
        own = SearchCall.plan(reranker, defaults, query, body, params, rerank=False, fields=fields)
        own = call.fall_back(own.body, own.params, reason)
        answered = yield SearchRequest(own)
        call, response = call.choose(response, own, answered)
    answer = yield from vectors.around(call, response)
    return (yield from records.after(call, answer))


def with_fields(
    options: Rerank,
    index: Any,
    found: FoundFields,
    *,
    query: str | Mapping[str, Any] | None = "",
    body: Any = None,
    anew: bool = False,
) -> Generator[SideRequest, Any, tuple[Rerank, Fields]]:
    """Yield the requests that find the fields of a search, and return options that name them, and the fields.

    Args:
        options: of the search.
        index: the caller's.
        found: finds them.
        query: the caller's: a text that searches fields, a clause, or None for the body's.
        body: the caller's.
        anew: whether to look again.
    """
    content = decoded(body)
    clause = content.get("query") if query is None else query
    own = None if isinstance(query, str) else searched_fields(clause)
    others = tuple(name for one in options.rankings[1:] for name in named(one.fields) if one.fields != options.fields)
    defined = tuple(leaves_of({"derived": content.get("derived"), "runtime": content.get("runtime_mappings")}).values())
    is_checked = isinstance(options.fields, CheckedNames)
    wanted = Wanted(named(options.query_fields), named(options.fields), own, others, defined, is_checked)
    fields = yield from found.of(index, wanted, anew=anew)
    searched = options.query_fields if wanted.searched else FoundNames(fields.searched or fields.read) or None
    read = fields.read if wanted.read or wanted.searched else FoundNames(fields.read)
    return replace(options, fields=read or None, query_fields=searched), fields


def _reads_nothing(answer: Any) -> bool:
    """Return whether a search found nothing, or nothing to read."""
    marks = answer.get("rerank")
    if marks is not None:
        return marks["applied"] is False and str(marks["reason"]).startswith((NO_HITS, NO_TEXT))
    total = (answer.get("hits") or {}).get("total")
    return (total.get("value") if isinstance(total, Mapping) else total) == 0


def expand_query(
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    index: Any,
    params: Mapping[str, Any],
    rerank: RerankArgument,
    fields: Fields | None,
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
    clause = yield from expand(query, index, options.rm3, params, fields.searched if fields else ())
    text = query if options.query is None else options.query
    return clause, replace(options, query=text)
