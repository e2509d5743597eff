"""The span of a request that the server answers, by the conventions for HTTP; a caller's trace goes on in it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from osrerank.tracing.spans import NOTHING, Tracing, UnrecordedSpan, trace

UNTRACED = frozenset({"/health", "/live", "/ping", "/ready", "/metrics"})
"""Asked every few seconds."""
FOLLOWED = (b"traceparent", b"tracestate")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER = "_OTHER"
"""A method of another name, of which there may be any number."""
BROKEN = 500


def server_span(how: Tracing, scope: Mapping[str, Any], request_id: str) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the span of a request; its path's query, which may hold anything, is left out."""
    if how == "off" or scope["path"] in UNTRACED:
        return NOTHING
    parent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in FOLLOWED}
    host, port = scope.get("server") or (None, None)
    method = scope["method"] if scope["method"] in METHODS else OTHER
    return trace(
        method if method != OTHER else "HTTP",
        how,
        kind="SERVER",
        parent=parent,
        http__request__method=method,
        url__path=scope["path"],
        url__scheme=scope.get("scheme", "http"),
        server__address=host,
        server__port=port,
        network__protocol__version=scope.get("http_version"),
        osrerank__request__id=request_id,
    )


def tell_answer(span: UnrecordedSpan, scope: Mapping[str, Any], status: int) -> None:
    """Set a request's route and the status of its answer; one from 500 on is a failure."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.rename(f"{scope['method']} {route}")
    span.set(http__route=route, http__response__status_code=status)
    if status >= BROKEN:
        span.fail(str(status))
