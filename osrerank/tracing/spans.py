"""Create OpenTelemetry spans, which record nothing unless the process sets up OpenTelemetry's SDK.

`start_trace` creates the outer span: that of a search, of a request, or of a chunk of texts that a worker scores.
`span` creates a span inside it, which is recorded only if the outer span is recorded. Other processes get the trace
context in W3C's headers ``traceparent`` and ``tracestate``. OpenTelemetry's baggage is neither sent nor read, because
it can contain private data.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from opentelemetry import trace as api
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from osrerank._version import __version__

Attributes = Mapping[str, str | bool | int | float | Sequence[str] | None]
"""A span's attributes by name, such as ``{"db.operation.name": "search"}``. Those that are None are not recorded."""

P = ParamSpec("P")
T = TypeVar("T")

MAX_VALUE_CHARACTERS = 2_000
"""The maximum length of an attribute's value. Longer values are truncated."""
PROPAGATOR = TraceContextTextMapPropagator()
"""Reads and writes the headers of the trace context."""
UNRECORDED = nullcontext(INVALID_SPAN)
"""A context manager for a span that records nothing."""
_may_record_queries: ContextVar[bool | None] = ContextVar("osrerank_queries", default=None)
"""Whether the current trace may contain queries. None outside of `start_trace`."""


@contextmanager
def start_trace(
    name: str,
    attributes: Attributes,
    *,
    records_queries: bool = False,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Mapping[str, str] | None = None,
) -> Iterator[Span]:
    """Create the span of a search, a request or a chunk.

    Args:
        name: the span's name.
        attributes: the span's attributes.
        records_queries: whether this span and the spans inside it may contain queries (the setting ``trace_queries``).
        kind: the span's kind.
        parent: the headers of a request or message, with the trace context of its sender. The new span becomes a child
            of the sender's span, unless there is a current span in this process.
    """
    token = _may_record_queries.set(records_queries)
    try:
        with _start_span(name, attributes, kind, parent) as new_span:
            yield new_span
    finally:
        _may_record_queries.reset(token)


def span(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> AbstractContextManager[Span]:
    """Create a span inside the current trace. If no trace is recorded, the span has no effect."""
    return _start_span(name, attributes or {}, kind) if is_recording() else UNRECORDED


def is_recording() -> bool:
    """Return whether a `span` created now would be recorded. Check this before you compute costly attributes."""
    is_in_trace = _may_record_queries.get() is not None
    return is_in_trace and api.get_current_span().is_recording()


def may_record_queries() -> bool:
    """Return whether the current trace may contain queries."""
    return bool(_may_record_queries.get())


def set_attributes(span: Span, attributes: Attributes) -> None:
    """Set attributes of a span, without those that are None."""
    if span.is_recording():
        span.set_attributes(_clean_attributes(attributes))


def add_event(name: str, attributes: Attributes) -> None:
    """Add an event to the current span, if it is recorded and inside a `start_trace`."""
    if is_recording():
        api.get_current_span().add_event(name, _clean_attributes(attributes))


def mark_failed(span: Span, error_type: str) -> None:
    """Mark a span as failed, and set its attribute ``error.type``."""
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


def trace_headers() -> dict[str, str]:
    """Return the headers by which another process continues this trace. Empty if there is no trace."""
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return carrier


def bind_trace(function: Callable[P, T]) -> Callable[P, T]:
    """Bind a function to the current trace, for one call in another thread."""
    return functools.partial(copy_context().run, function)


def error_type(error: BaseException) -> str:
    """Return the value of ``error.type`` for an error: its HTTP status, such as ``503``, or else its class."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return str(status)
    error_class = type(error)
    name = error_class.__qualname__
    return name if error_class.__module__ == "builtins" else f"{error_class.__module__}.{name}"


@contextmanager
def _start_span(
    name: str, attributes: Attributes, kind: SpanKind, parent: Mapping[str, str] | None = None
) -> Iterator[Span]:
    """Create a span and make it the current span. If an error is raised inside it, only its type is recorded."""
    has_current_span = api.get_current_span().get_span_context().is_valid
    context = None if has_current_span or not parent else PROPAGATOR.extract(parent)
    new_span = api.get_tracer("osrerank", __version__).start_span(name, context, kind, _clean_attributes(attributes))
    with api.use_span(new_span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield new_span
        except Exception as error:
            mark_failed(new_span, error_type(error))
            raise


def _clean_attributes(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that are not None, with strings truncated to `MAX_VALUE_CHARACTERS`."""
    return {
        name: value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }
