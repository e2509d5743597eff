"""Parse a caller's search or multi-search. Turn it into the requests and computations that a client performs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.retrieval.boosts import SCORES_PARAM
from osrerank.retrieval.fields import SearchFields
from osrerank.search.lockstep import ClientSteps, run_in_lockstep, run_one
from osrerank.search.plan import Query, RerankArgument, SearchCall, apply_traffic, decode_body, with_query
from osrerank.search.run import search
from osrerank.search.searcher import Searcher
from osrerank.search.step import MultiSearchRequest, SearchRequest
from osrerank.types.engine_errors import EngineError
from osrerank.types.reasons import Reason

URL_QUERY_OPTIONS = {
    "q": "query",
    "df": "default_field",
    "analyzer": "analyzer",
    "analyze_wildcard": "analyze_wildcard",
    "default_operator": "default_operator",
    "lenient": "lenient",
}
"""The URL parameters that make up a query, and the name of each in a ``query_string`` clause."""
SHARED_PARAMS = ("filter_path", SCORES_PARAM)
"""The URL parameters of a multi-search that apply to each of its searches."""


def search_steps(
    searcher: Searcher,
    query: Query,
    body: Any,
    params: Mapping[str, Any],
    *,
    index: Any,
    rerank: RerankArgument,
    headers: Any = None,
) -> ClientSteps:
    """Yield the requests and computations of a client's search, and return the response.

    Args:
        searcher: the client's searcher.
        query: a text, a query-DSL clause, or None for the query in the body.
        body: the caller's search body.
        params: the caller's URL parameters.
        index: the caller's index or indices.
        rerank: the caller's ``rerank`` argument.
        headers: the headers of the caller's request.

    Raises:
        ConfigError: the rerank options are invalid, or no query text was found and ``on_failure`` is ``"raise"``.
        ValueError: both a query and a body with a query are given.
        EngineError: the search engine refused the search.
        PropagatedError: reranking failed and ``on_failure`` is ``"raise"``.
    """
    searcher = searcher.for_user(headers)
    options = Rerank.of(rerank, searcher.defaults.options_for(index))
    if options is None and query is None:
        return (yield SearchRequest(body, params))
    decoded_body = {} if body is None else decode_body(body)
    decoded_body, params = with_url_query(decoded_body, params)
    if options is None and not isinstance(query, str):
        # a clause needs no fields
        return (yield SearchRequest(with_query(query, decoded_body, SearchFields()), params))
    traffic_exclusion: Reason | None = None
    if options is not None:
        options, traffic_exclusion = apply_traffic(options, query, decoded_body)
    call = SearchCall(
        query=query,
        body=decoded_body,
        params=params,
        index=index,
        options=options,
        exclusion=traffic_exclusion,
        is_json=isinstance(body, str | bytes),
    )
    return (yield from run_one(search(call, searcher), searcher.vectors))


def with_url_query(body: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Move the query of the URL parameter ``q`` into the body. Return the new body and the other parameters.

    For example, ``q=title:dogs`` becomes ``{"query": {"query_string": {"query": "title:dogs"}}}``. As in the engine, it
    replaces the query of the body.
    """
    if params.get("q") is None:
        return body, params
    clause = {key: params[name] for name, key in URL_QUERY_OPTIONS.items() if params.get(name) is not None}
    other_params = {name: value for name, value in params.items() if name not in URL_QUERY_OPTIONS}
    return {**body, "query": {"query_string": clause}}, other_params


def multi_search_steps(
    searcher: Searcher, body: Any, index: Any, *, rerank: RerankArgument, params: Mapping[str, Any]
) -> ClientSteps:
    """Yield the requests and computations of a client's multi-search, and return its response.

    Each search is reranked, or the ``rerank`` entry in its response says why not.

    Args:
        searcher: the client's searcher.
        body: newline-delimited JSON, or a list with a header and a body for each search.
        index: the index of searches whose header names none.
        rerank: the caller's ``rerank`` argument, which applies to each search.
        params: the keyword arguments of the caller's ``msearch``.

    Raises:
        ConfigError: the body has a header without a body, or the rerank options cannot be used.
        EngineError: the search engine refused the multi-search.
    """
    searcher = searcher.for_user(params.get("headers"))
    lines = parse_lines(body)
    url_params = {**(params.get("params") or {}), **params}
    shared_params = {name: url_params[name] for name in SHARED_PARAMS if url_params.get(name)}
    calls = []
    for position, (header, raw_body) in enumerate(zip(lines[::2], lines[1::2], strict=True), start=1):
        searched_index, search_body = header.get("index", index), decode_body(raw_body or {})
        options = Rerank.of(rerank, searcher.defaults.options_for(searched_index))
        assert options is not None, "clients send a multi-search with rerank=False themselves"
        if options.rm3 is not None:
            reason = "rm3 sends requests before the search, and a multi-search is one request"
            raise ConfigError(f"{reason}; use search for these queries", setting="rerank.rm3", source="argument")
        options, traffic_exclusion = apply_traffic(options, None, search_body)
        call = SearchCall(
            body=search_body,
            params=shared_params,
            index=searched_index,
            options=options,
            exclusion=traffic_exclusion,
            position=position,
            header=header,
            is_json=isinstance(body, str | bytes),
        )
        calls.append(call)
    if not calls:  # the engine responds with its error for an empty multi-search
        return (yield MultiSearchRequest(lines))
    return (yield from _multi_search(searcher, calls))


def _multi_search(searcher: Searcher, calls: Sequence[SearchCall]) -> ClientSteps:
    """Yield the requests and computations of several searches, and return the response of the multi-search.

    A search that cannot be reranked is sent unchanged, and its response says why. If the first passes of some searches
    are refused or incomplete, one more request sends these searches as the caller wrote them. The engine's error
    responses are returned unchanged.

    Args:
        searcher: the client's searcher.
        calls: the searches, each with its header.

    Raises:
        ConfigError: the rerank options cannot be used.
        EngineError: the search engine refused the multi-search.
        PropagatedError: reranking failed and ``on_failure`` is ``"raise"``.
    """
    outcomes = yield from run_in_lockstep([(call.header, search(call, searcher)) for call in calls], searcher.vectors)
    for outcome in outcomes.by_search:
        # the cause is an exception if the whole request failed, and the error response of one search otherwise
        if isinstance(outcome, EngineError) and isinstance(outcome.cause, Exception):
            raise outcome
    if not outcomes.has_responses:  # the caller's filter_path hides them
        return outcomes.envelope
    responses = [outcome.cause if isinstance(outcome, EngineError) else outcome for outcome in outcomes.by_search]
    return {**outcomes.envelope, "responses": responses}


def parse_lines(body: Any) -> list[Mapping[str, Any]]:
    """Return the lines of a multi-search: each search's header, then its body.

    For example, ``[{"index": "notes"}, {"query": {...}}]`` is one search.

    Raises:
        ConfigError: a line is not JSON, or a header has no body.
    """
    if isinstance(body, bytes):
        body = body.decode("utf-8")
    lines = [line for line in body.split("\n") if line.strip()] if isinstance(body, str) else list(body)
    decoded_lines = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded_lines.append(json.loads(line) if isinstance(line, str | bytes) else line)
        except ValueError as error:
            reason = f"line {number} of the multi-search is not JSON: {error}"
            raise ConfigError(reason, setting="body", source="argument") from None
    if len(decoded_lines) % 2:
        raise ConfigError(
            f"the multi-search has {len(decoded_lines)} lines; their number must be even, because each search "
            "has a header and a body",
            setting="body",
            source="argument",
        )
    headers = [{} if header is None else decode_body(header) for header in decoded_lines[::2]]
    return [line for search in zip(headers, decoded_lines[1::2], strict=True) for line in search]
