"""Record a worker's chunk, which is a part of a search's documents, as a span in the trace of the search."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry.trace import Span, SpanKind

from osrerank.scoring.remote.messages import ChunkRequest
from osrerank.tracing.spans import Attributes, mark_failed, set_attributes, start_trace

TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers by which a span finds its parent, from the standard W3C Trace Context."""
FAILED_OUTCOMES = ("failed", "unanswered")
"""The outcomes that mark a span as failed. A dropped chunk arrived after its deadline, which is not an error."""


def chunk_span(
    queue: str, request: ChunkRequest, headers: Mapping[str, object] | None, *, records_queries: bool
) -> AbstractContextManager[Span]:
    """Begin a chunk's span, with the name and attributes of OpenTelemetry's conventions for messaging.

    Args:
        queue: the name of the chunk's queue.
        request: the chunk's request.
        headers: the headers of the chunk's task, which are not signed.
        records_queries: whether the span includes the query: the setting ``trace_queries``.
    """
    all_headers = headers or {}
    parent = {name: value for name, value in all_headers.items() if name in TRACE_HEADERS and isinstance(value, str)}
    attributes: Attributes = {
        "messaging.system": "celery",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": request.chunk,
        "osrerank.chunk.documents": len(request.documents),
        "osrerank.chunk.pairs": len(request.tuples),
        "osrerank.query": request.query if records_queries else None,
    }
    return start_trace(
        f"process {queue}", attributes, records_queries=records_queries, kind=SpanKind.CONSUMER, parent=parent
    )


def set_outcome(span: Span, outcome: str) -> None:
    """Set the outcome of a chunk's span: scored, failed, dropped or unanswered."""
    set_attributes(span, {"osrerank.chunk.outcome": outcome})
    if outcome in FAILED_OUTCOMES:
        mark_failed(span, outcome)
