"""Spans of OpenTelemetry, where the application traces; elsewhere each costs the look at a variable.

Whoever traces has imported ``opentelemetry.trace`` to set its tracer provider. A process without that module does not
trace: nothing is imported here, and `trace` and `span` return the same object that does nothing.

`trace` begins what an operator asks about (a search, a request, a chunk), `span` a part of it. Parts are recorded only
within a trace of ours that is sampled. A trace's context travels as W3C's ``traceparent`` and ``tracestate``; baggage,
which may hold anything, is neither sent nor read.
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
"""What is recorded: spans, nothing, or spans with the queries' texts and the reasons in full."""
Kind = Literal["INTERNAL", "CLIENT", "SERVER", "CONSUMER"]
Value = str | bool | int | float | Sequence[str] | None
"""Of an attribute; None leaves it out."""

P = ParamSpec("P")
T = TypeVar("T")

MOST_CHARACTERS = 2_000
"""Of an attribute."""
NOT_RECORDED = ("off", "unsampled")
_state: ContextVar[Literal["on", "off", "queries", "unsampled"]] = ContextVar("osrerank_tracing", default="off")


class Span:
    """A span that is not recorded."""

    tells_queries = False

    def set(self, **attributes: Value) -> None:
        """Set attributes; ``__`` in their names stands for a dot."""

    def event(self, name: str, **attributes: Value) -> None:
        """Add an event."""

    def rename(self, name: str) -> None:
        """Give the span a name that was not known when it began."""

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with the kind of error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...


class Recorded(Span):
    """A span of a trace.

    Args:
        span: OpenTelemetry's.
        tells_queries: whether texts of queries may be told.
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


NOTHING = Span()


def trace(
    name: str, how: Tracing, *, kind: Kind = "INTERNAL", parent: Mapping[str, str] | None = None, **attributes: Value
) -> AbstractContextManager[Span]:
    """Begin what is traced by itself: within the application's own span, or where ``parent`` says.

    Args:
        name: the span's.
        how: the setting.
        kind: OpenTelemetry's.
        parent: headers of the request or message that asks for it.
        attributes: of the span, as `Span.set`.
    """
    return _traced(name, how, kind, parent, attributes) if is_traced(how) else NOTHING


def is_traced(how: Tracing) -> bool:
    """Return whether `trace` begins anything; asked before attributes are collected."""
    return how != "off" and "opentelemetry.trace" in sys.modules


def span(name: str, *, kind: Kind = "INTERNAL", **attributes: Value) -> AbstractContextManager[Span]:
    """Begin a part of what is traced in this context; nothing where it is not."""
    state = _state.get()
    if state in NOT_RECORDED:
        return NOTHING
    return _span(name, kind, attributes, tells_queries=state == "queries")


def current() -> Span:
    """Return the span that is under way in this context."""
    state = _state.get()
    if state in NOT_RECORDED:
        return NOTHING
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    return Recorded(api.get_current_span(), tells_queries=state == "queries")


def is_recording() -> bool:
    """Return whether parts are recorded in this context; asked likewise."""
    return _state.get() not in NOT_RECORDED


def headers() -> dict[str, str]:
    """Return what continues this trace on another machine, as headers; empty where nothing is traced."""
    if _state.get() == "off":
        return {}
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that belongs to what is traced here when another thread calls it, once."""
    if "opentelemetry.trace" not in sys.modules:
        return function
    return functools.partial(copy_context().run, function)


def name_of(error: BaseException) -> str:
    """Return an error's class, or the status that a server answered, for ``error.type``."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return str(status)
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def _traced(
    name: str, how: Tracing, kind: Kind, parent: Mapping[str, str] | None, attributes: Mapping[str, Value]
) -> Iterator[Span]:
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
def _span(name: str, kind: Kind, attributes: Mapping[str, Value], *, tells_queries: bool) -> Iterator[Span]:
    from opentelemetry import trace as api  # noqa: PLC0415 - imported already, by whoever traces

    started = _tracer().start_span(name, None, api.SpanKind[kind], _usable(attributes))
    with _ended(started, tells_queries=tells_queries) as recorded:
        yield recorded


@contextmanager
def _ended(started: "opentelemetry_trace.Span", *, tells_queries: bool) -> Iterator[Recorded]:
    """Make a span the current one, and end it; of an error that leaves it only the class is kept."""
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
    """Return attributes that are not None, by their names with dots, their texts bounded."""
    return {
        name.replace("__", "."): value[:MOST_CHARACTERS] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }
