"""Begin and end OpenTelemetry's spans; in a process without the SDK, the API's own spans record nothing.

`trace` begins the span of a search, a request or a chunk; `span` begins a span inside it, which is recorded only if the
outer one is sampled. A trace's context is sent as W3C's ``traceparent`` and ``tracestate``; baggage, which may contain
anything, is neither sent nor read.
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
"""Name -> value of an attribute; an attribute that is None is left out."""

P = ParamSpec("P")
T = TypeVar("T")

MAX_CHARACTERS = 2_000
"""The maximum number of characters of an attribute."""
PROPAGATOR = TraceContextTextMapPropagator()
UNRECORDED = nullcontext(INVALID_SPAN)
"""A span that records nothing."""
_queries: ContextVar[bool | None] = ContextVar("osrerank_queries", default=None)
"""Whether this context's trace may contain queries; None outside of `trace`."""


@contextmanager
def trace(
    name: str,
    attributes: Attributes,
    *,
    queries: bool = False,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Mapping[str, str] | None = None,
) -> Iterator[Span]:
    """Begin the span of a search, a request or a chunk, inside the application's current span or else ``parent``'s.

    Args:
        name: the name of the span.
        attributes: the attributes of the span.
        queries: whether the span and those inside it may contain queries (the setting ``trace_queries``).
        kind: the kind of the span.
        parent: the headers of the request or message that caused it.
    """
    token = _queries.set(queries)
    try:
        with _start_span(name, attributes, kind, parent) as new_span:
            yield new_span
    finally:
        _queries.reset(token)


def span(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> AbstractContextManager[Span]:
    """Begin a span inside the current trace; it does nothing if no trace is recorded."""
    return _start_span(name, attributes or {}, kind) if is_recording() else UNRECORDED


def is_recording() -> bool:
    """Return whether `span` would record a span in this context; ask before collecting costly attributes."""
    return _queries.get() is not None and api.get_current_span().is_recording()


def may_record_queries() -> bool:
    """Return whether this context's trace may contain queries."""
    return bool(_queries.get())


def set_attributes(span: Span, attributes: Attributes) -> None:
    """Set a span's attributes."""
    if span.is_recording():
        span.set_attributes(_clean_attributes(attributes))


def add_event(name: str, attributes: Attributes) -> None:
    """Add an event to the current span, if it is recorded and inside a `trace`."""
    if is_recording():
        api.get_current_span().add_event(name, _clean_attributes(attributes))


def mark_failed(span: Span, kind: str) -> None:
    """Mark a span as failed, with the kind of the error."""
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def trace_headers() -> dict[str, str]:
    """Return the headers with which another process continues this trace; empty if nothing is traced."""
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return carrier


def bind_trace(function: Callable[P, T]) -> Callable[P, T]:
    """Bind a function to the current trace, for a single call in another thread."""
    return functools.partial(copy_context().run, function)


def error_type(error: BaseException) -> str:
    """Return the value of ``error.type`` for an error: its class, or the status that a server answered."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return str(status)
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def _start_span(
    name: str, attributes: Attributes, kind: SpanKind, parent: Mapping[str, str] | None = None
) -> Iterator[Span]:
    """Begin a span, make it the current one, and end it; of an error that leaves it, only the class is recorded."""
    is_within = api.get_current_span().get_span_context().is_valid
    context = None if is_within or not parent else PROPAGATOR.extract(parent)
    new_span = api.get_tracer("osrerank", __version__).start_span(name, context, kind, _clean_attributes(attributes))
    with api.use_span(new_span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield new_span
        except Exception as error:
            mark_failed(new_span, error_type(error))
            raise


def _clean_attributes(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that are not None, with texts cut to `MAX_CHARACTERS`."""
    return {
        name: value[:MAX_CHARACTERS] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }
