"""The span of a chunk: a part of the trace of the search that sent it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry.trace import Span, SpanKind

from osrerank.scoring.remote.messages import ChunkRequest
from osrerank.tracing.spans import Attributes, fail, tell, trace

FOLLOWED = ("traceparent", "tracestate")
FAILED = ("failed", "unanswered")
"""Outcomes that are errors; a chunk that is dropped was late."""


def chunk_span(
    queue: str, request: ChunkRequest, headers: Mapping[str, object] | None, *, queries: bool
) -> AbstractContextManager[Span]:
    """Begin the span of a chunk, by the conventions for messaging.

    Args:
        queue: that the chunk came from.
        request: the request of the chunk.
        headers: the headers of its task, which no signature covers.
        queries: the setting ``trace_queries``.
    """
    parent = {name: value for name in FOLLOWED if isinstance(value := (headers or {}).get(name), str)}
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


def tell_chunk(span: Span, outcome: str) -> None:
    """Set what became of a chunk: scored, failed, dropped or unanswered."""
    tell(span, {"osrerank.chunk.outcome": outcome})
    if outcome in FAILED:
        fail(span, outcome)
