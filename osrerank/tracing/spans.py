"""Begin and end OpenTelemetry spans if the application traces; if it does not, a span costs the read of a variable.

An application that traces has imported ``opentelemetry.trace`` to set its tracer provider. In a process without that
module, nothing is imported here, and `trace` and `span` return an object that does nothing.

`trace` begins the span of a search, a request or a chunk; `span` begins a part of it. Parts are recorded only within
such a span that is sampled. A trace's context is sent as W3C's ``traceparent`` and ``tracestate``; baggage, which may
hold anything, is neither sent nor read.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from osrerank._version import __version__

if TYPE_CHECKING:
    from opentelemetry import trace as opentelemetry_trace

Tracing = Literal["on", "off", "queries"]
"""What is recorded: spans, nothing, or spans with the texts of queries and the reasons in full."""
Kind = Literal["INTERNAL", "CLIENT", "SERVER", "CONSUMER"]
Value = str | bool | int | float | Sequence[str] | None
"""The value of an attribute; None leaves the attribute out."""

P = ParamSpec("P")
T = TypeVar("T")

MOST_CHARACTERS = 2_000
"""The most characters of an attribute."""
NOT_RECORDED = ("off", "unsampled")
"""The states of a context in which no spans are recorded."""
_state: ContextVar[Literal["on", "off", "queries", "unsampled"]] = ContextVar("osrerank_tracing", default="off")


class UnrecordedSpan:
    """A span that is not recorded; its methods do nothing."""

    tells_queries = False

    def set(self, **attributes: Value) -> None:
        """Set attributes; ``__`` in their names stands for a dot."""

    def event(self, name: str, **attributes: Value) -> None:
        """Add an event."""

    def rename(self, name: str) -> None:
        """Change the span's name, if it was not known when the span began."""

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with the kind of error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...


class Recorded(UnrecordedSpan):
    """A recorded span of OpenTelemetry.

    Args:
        span: OpenTelemetry's span.
        tells_queries: whether its attributes may have texts of queries.
    """

    def __init__(self, span: "opentelemetry_trace.Span", *, tells_queries: bool) -> None:
        self._span = span
        self.tells_queries = tells_queries

    def set(self, **attributes: Value) -> None:
        self._span.set_attributes(_usable(attributes))

    def event(self, name: str, **attributes: Value) -> None:
        self._span.add_event(name, _usable(attributes))

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - imported already, by whoever traces

        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


NOTHING = UnrecordedSpan()


def trace(
    name: str, how: Tracing, *, kind: Kind = "INTERNAL", parent: Mapping[str, str] | None = None, **attributes: Value
) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the span of a search, a request or a chunk: within the application's own span, or that of ``parent``.

    Args:
        name: the span's name.
        how: the setting ``tracing``.
        kind: OpenTelemetry's kind of the span.
        parent: headers of the request or message that caused it.
        attributes: the span's attributes, as in `UnrecordedSpan.set`.
    """
    return _traced(name, how, kind, parent, attributes) if is_traced(how) else NOTHING


def is_traced(how: Tracing) -> bool:
    """Return whether `trace` would begin a span; callers ask before they collect attributes."""
    return how != "off" and "opentelemetry.trace" in sys.modules


def span(name: str, *, kind: Kind = "INTERNAL", **attributes: Value) -> AbstractContextManager[UnrecordedSpan]:
    """Begin a part of the current trace; if none is recorded, the span does nothing."""
    state = _state.get()
    if state in NOT_RECORDED:
        return NOTHING
    return _span(name, kind, attributes, tells_queries=state == "queries")


def current() -> UnrecordedSpan:
    """Return the current span of this context."""
    state = _state.get()
    if state in NOT_RECORDED:
        return NOTHING
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    return Recorded(api.get_current_span(), tells_queries=state == "queries")


def is_recording() -> bool:
    """Return whether `span` would record a part in this context; callers ask before they collect attributes."""
    return _state.get() not in NOT_RECORDED


def headers() -> dict[str, str]:
    """Return the headers with which another machine continues this trace; empty if nothing is traced."""
    if _state.get() == "off":
        return {}
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Bind a function to the current trace, so that it continues it in another thread; it may be called once."""
    if "opentelemetry.trace" not in sys.modules:
        return function
    return functools.partial(copy_context().run, function)


def name_of(error: BaseException) -> str:
    """Return the value of ``error.type`` for an error: its class, or the status that a server answered."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return str(status)
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def _traced(
    name: str, how: Tracing, kind: Kind, parent: Mapping[str, str] | None, attributes: Mapping[str, Value]
) -> Iterator[UnrecordedSpan]:
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    is_within = api.get_current_span().get_span_context().is_valid
    context = None if is_within or not parent else _propagator().extract(parent)
    started = _tracer().start_span(name, context, api.SpanKind[kind], _usable(attributes))
    token = _state.set(how if started.is_recording() else "unsampled")
    try:
        with _ended(started, tells_queries=how == "queries") as recorded:
            yield recorded if started.is_recording() else NOTHING
    finally:
        _state.reset(token)


@contextmanager
def _span(name: str, kind: Kind, attributes: Mapping[str, Value], *, tells_queries: bool) -> Iterator[UnrecordedSpan]:
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    started = _tracer().start_span(name, None, api.SpanKind[kind], _usable(attributes))
    with _ended(started, tells_queries=tells_queries) as recorded:
        yield recorded


@contextmanager
def _ended(started: "opentelemetry_trace.Span", *, tells_queries: bool) -> Iterator[Recorded]:
    """Make a span the current one, and end it afterwards; if an error leaves it, only the error's class is recorded."""
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    recorded = Recorded(started, tells_queries=tells_queries)
    with api.use_span(started, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield recorded
        except Exception as error:
            recorded.fail(name_of(error))
            raise


def _tracer() -> "opentelemetry_trace.Tracer":
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    return _tracer_of(api.get_tracer_provider())


@functools.lru_cache(maxsize=4)
def _tracer_of(provider: "opentelemetry_trace.TracerProvider") -> "opentelemetry_trace.Tracer":
    return provider.get_tracer("osrerank", __version__)


@functools.cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - there with what is imported already
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator()


def _usable(attributes: Mapping[str, Value]) -> dict[str, Any]:
    """Return the attributes that are not None, with dots in their names, and with their texts cut to the limit."""
    return {
        name.replace("__", "."): value[:MOST_CHARACTERS] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }
