"""Begin the tracing spans of a search: one for the whole search, and one for each request that it sends."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from osrerank.retrieval.requests import SideRequest, is_embedded
from osrerank.search.call import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.step import MultiSearchRequest, Step
from osrerank.service import RerankService
from osrerank.tracing.attributes import db_attributes, names_of, operation_of
from osrerank.tracing.spans import NOTHING, UnrecordedSpan, is_recording, is_traced, span, trace


class TracedClient(Protocol):
    """The attributes that tracing needs of a client, synchronous or asynchronous."""

    searcher: Searcher
    transport: Any


def search_span(
    client: TracedClient, index: Any, rerank: RerankArgument, query: Any
) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the trace of a search; a search without reranking is not traced."""
    how = client.searcher.service.settings.tracing
    if rerank is False or not is_traced(how):
        return NOTHING
    text = query if how == "queries" and isinstance(query, str) else None
    return trace("osrerank.search", how, osrerank__index=names_of(index), osrerank__query=text)


def request_span(client: TracedClient, step: Step, index: Any) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the span of a search's request to the search engine."""
    if not is_recording():
        return NOTHING
    hosts = None if is_embedded(client) else getattr(client.transport, "hosts", None) or ()
    if isinstance(step, MultiSearchRequest):
        size, attributes = len(step.lines) // 2, db_attributes(hosts, "msearch", index)
        return span("msearch", kind="CLIENT", db__operation__batch__size=size, **attributes)
    operation = "search"
    if isinstance(step, SideRequest):
        operation, index = operation_of(step.method, step.path)
    attributes = db_attributes(hosts, operation, index)
    return span(f"{operation} {attributes['db__collection__name'] or '_all'}", kind="CLIENT", **attributes)


def rerank_span(service: RerankService, query: str) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the trace of reranking hits or texts that another search found."""
    how = service.settings.tracing
    return trace("osrerank.rerank", how, osrerank__query=query if how == "queries" else None)


def multi_search_span(client: TracedClient, index: Any) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the trace of a multi-search."""
    return trace("osrerank.msearch", client.searcher.service.settings.tracing, osrerank__index=names_of(index))
