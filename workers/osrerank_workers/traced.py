"""Trace a chunk: its span belongs to the trace of the search that sent it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry.trace import Span, SpanKind

from osrerank.scoring.remote.messages import ChunkRequest
from osrerank.tracing.spans import Attributes, fail, tell, trace

TRACE_HEADERS = ("traceparent", "tracestate")
FAILED = ("failed", "unanswered")
"""Outcomes that are errors; a dropped chunk was merely late."""


def chunk_span(
    queue: str, request: ChunkRequest, headers: Mapping[str, object] | None, *, queries: bool
) -> AbstractContextManager[Span]:
    """Begin a chunk's span, named and described by OpenTelemetry's conventions for messaging.

    Args:
        queue: the name of the queue that the chunk came from.
        request: the chunk's request.
        headers: the headers of its task, which no signature covers.
        queries: whether the span may contain the query (the setting ``trace_queries``).
    """
    parent = {name: value for name in TRACE_HEADERS if isinstance(value := (headers or {}).get(name), str)}
    attributes: Attributes = {
        "messaging.system": "celery",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": request.chunk,
        "osrerank.chunk.documents": len(request.documents),
        "osrerank.chunk.pairs": len(request.tuples),
        "osrerank.query": request.query if queries else None,
    }
    return trace(f"process {queue}", attributes, queries=queries, kind=SpanKind.CONSUMER, parent=parent)


def set_outcome(span: Span, outcome: str) -> None:
    """Set the outcome of a chunk's span: scored, failed, dropped or unanswered."""
    tell(span, {"osrerank.chunk.outcome": outcome})
    if outcome in FAILED:
        fail(span, outcome)
