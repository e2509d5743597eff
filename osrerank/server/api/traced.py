"""The span of a request that the server answers, by the conventions for HTTP; a caller's trace goes on in it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import Span, SpanKind

from osrerank.tracing.spans import UNRECORDED, Attributes, fail, tell, trace

READINESS = frozenset({"/ready", "/.well-known/ready"})
UNTRACED = frozenset({"/health", "/live", "/ping", "/metrics"}) | READINESS
"""Asked every few seconds."""
FOLLOWED = (b"traceparent", b"tracestate")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER = "_OTHER"
"""A method of another name, of which there may be any number."""
BROKEN = 500


def server_span(scope: Mapping[str, Any], request_id: str, *, queries: bool) -> AbstractContextManager[Span]:
    """Begin the span of a request; its path's query, which may hold anything, is left out."""
    if scope["path"] in UNTRACED:
        return UNRECORDED
    parent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in FOLLOWED}
    host, port = scope.get("server") or (None, None)
    method = scope["method"] if scope["method"] in METHODS else OTHER
    attributes: Attributes = {
        "http.request.method": method,
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "server.address": host,
        "server.port": port,
        "network.protocol.version": scope.get("http_version"),
        "osrerank.request.id": request_id,
    }
    name = method if method != OTHER else "HTTP"
    return trace(name, attributes, queries=queries, kind=SpanKind.SERVER, parent=parent)


def tell_answer(span: Span, scope: Mapping[str, Any], status: int) -> None:
    """Set a request's route and the status of its answer; one from 500 on is a failure."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.update_name(f"{scope['method']} {route}")
    tell(span, {"http.route": route, "http.response.status_code": status})
    if status >= BROKEN:
        fail(span, str(status))
