"""The span of a chunk: a part of the trace of the search that sent it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from osrerank.scoring.remote.messages import ChunkRequest
from osrerank.tracing.spans import Tracing, UnrecordedSpan, trace

FOLLOWED = ("traceparent", "tracestate")
FAILED = ("failed", "unanswered")
"""Outcomes that are errors; a chunk that is dropped was late."""


def chunk_span(
    how: Tracing, queue: str, request: ChunkRequest, headers: Mapping[str, object] | None
) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the span of a chunk, by the conventions for messaging.

    Args:
        how: the setting.
        queue: that the chunk came from.
        request: of the chunk.
        headers: of its task, which no signature covers.
    """
    parent = {name: value for name in FOLLOWED if isinstance(value := (headers or {}).get(name), str)}
    return trace(
        f"process {queue}",
        how,
        kind="CONSUMER",
        parent=parent,
        messaging__system="celery",
        messaging__operation__name="process",
        messaging__operation__type="process",
        messaging__destination__name=queue,
        messaging__message__id=request.chunk,
        osrerank__chunk__documents=len(request.documents),
        osrerank__chunk__pairs=len(request.tuples),
        osrerank__query=request.query if how == "queries" else None,
    )


def tell_chunk(span: UnrecordedSpan, outcome: str) -> None:
    """Set what became of a chunk: scored, failed, dropped or unanswered."""
    span.set(osrerank__chunk__outcome=outcome)
    if outcome in FAILED:
        span.fail(outcome)
