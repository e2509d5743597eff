"""The steps of a reranked search, without input and output.

`search_steps` yields each step - send a request, score - and is sent its result. The synchronous and the asynchronous
client perform the steps and know nothing else of a search.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from opensearchpy import TransportError

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.reranker import Reranker
from osrerank.retrieval.rm3 import FeedbackRequest, expand
from osrerank.search.call import RerankArgument, SearchCall
from osrerank.types import Deadline


class SearchRequest(NamedTuple):
    """A request to OpenSearch's ``_search``.

    Attributes:
        call: has the body and the URL parameters.
    """

    call: SearchCall


class Scoring(NamedTuple):
    """Work that takes long and sends nothing to OpenSearch.

    Attributes:
        run: does it; an event loop calls it in a thread.
    """

    run: Callable[[], Any]


Step = FeedbackRequest | SearchRequest | Scoring


def search_steps(
    reranker: Reranker,
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    body: Any,
    params: Mapping[str, Any],
    *,
    index: Any,
    rerank: RerankArgument,
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

    Raises:
        ConfigError, ValueError: as `SearchCall.plan`.
        ScoringError: reranking failed and ``on_failure`` is ``"raise"``.
    """
    query, rerank, deadline = yield from expand_query(defaults, query, index, params, rerank)
    call = SearchCall.plan(reranker, defaults, query, body, params, rerank=rerank, deadline=deadline)
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
    return (yield Scoring(partial(call.finish, response)))


class Expanded(NamedTuple):
    """The arguments of a search after query expansion."""

    query: str | Mapping[str, Any] | None
    rerank: RerankArgument
    deadline: Deadline | None


def expand_query(
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    index: Any,
    params: Mapping[str, Any],
    rerank: RerankArgument,
) -> Generator[FeedbackRequest, Any, Expanded]:
    """Yield the requests of query expansion, none unless ``rm3`` is set, and return the expanded arguments.

    Raises:
        ConfigError: the options cannot be used, or ``rm3`` is set and the query is not text.
    """
    options = Rerank.of(rerank, defaults)
    if options is None or options.rm3 is None:
        return Expanded(query, rerank, None)
    if not isinstance(query, str):
        raise ConfigError(
            "rm3 expands a query given as text: client.search(text, ...); for a query of your own leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    deadline = Deadline.after_ms(options.deadline_ms)
    clause = yield from expand(query, index, options.rm3, params)
    text = query if options.query is None else options.query
    return Expanded(clause, replace(options, query=text), deadline)
