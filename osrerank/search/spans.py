"""Begin the tracing spans of a search: one for the whole search, and one for each request that it sends."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from opentelemetry.trace import Span, SpanKind

from osrerank.retrieval.requests import SideRequest
from osrerank.search.plan import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.step import ClientStep, MultiSearchRequest
from osrerank.service import RerankService
from osrerank.tracing.attributes import build_db_attributes, describe_request, join_names
from osrerank.tracing.spans import UNRECORDED, Attributes, is_recording, span, start_trace
from osrerank.types.engine import Engine


class TracedClient(Protocol):
    """The attributes that tracing needs of a client, synchronous or asynchronous."""

    searcher: Searcher
    transport: Any


def search_span(client: TracedClient, index: Any, rerank: RerankArgument, query: Any) -> AbstractContextManager[Span]:
    """Begin the span of a search. A search with ``rerank=False`` is not traced.

    Args:
        client: the client that performs the search.
        index: the index or indices searched.
        rerank: the caller's ``rerank`` argument.
        query: the caller's query. If it is a text, and the settings allow it, the span records it.
    """
    if rerank is False:
        return UNRECORDED
    may_record_queries = client.searcher.service.settings.trace_queries
    text = query if may_record_queries and isinstance(query, str) else None
    attributes = {"osrerank.index": join_names(index), "osrerank.query": text}
    return start_trace("osrerank.search", attributes, records_queries=may_record_queries)


def request_span(client: TracedClient, step: ClientStep, index: Any) -> AbstractContextManager[Span]:
    """Begin the span of a search's request to the search engine, named after the operation, such as "search notes"."""
    if not is_recording():
        return UNRECORDED
    engine = client.searcher.engine.identified_engine or Engine.OPENSEARCH
    hosts = getattr(client.transport, "hosts", None) or ()
    if isinstance(step, MultiSearchRequest):
        attributes: Attributes = {
            **build_db_attributes(engine, hosts, "msearch", index),
            "db.operation.batch.size": len(step.lines) // 2,  # each search has a header and a body
        }
        return span("msearch", attributes, kind=SpanKind.CLIENT)
    operation = "search"
    if isinstance(step, SideRequest):
        operation, index = describe_request(step.method, step.path)
    attributes = build_db_attributes(engine, hosts, operation, index)
    return span(f"{operation} {attributes['db.collection.name'] or '_all'}", attributes, kind=SpanKind.CLIENT)


def rerank_span(service: RerankService, query: str) -> AbstractContextManager[Span]:
    """Begin the span of reranking hits or texts that the caller has, without a search."""
    may_record_queries = service.settings.trace_queries
    attributes = {"osrerank.query": query if may_record_queries else None}
    return start_trace("osrerank.rerank", attributes, records_queries=may_record_queries)


def multi_search_span(client: TracedClient, index: Any) -> AbstractContextManager[Span]:
    """Begin the span of a multi-search."""
    may_record_queries = client.searcher.service.settings.trace_queries
    return start_trace("osrerank.msearch", {"osrerank.index": join_names(index)}, records_queries=may_record_queries)
