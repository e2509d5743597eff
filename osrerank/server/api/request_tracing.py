"""Record an OpenTelemetry span for each HTTP request, as a part of the trace in the caller's headers."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import Span, SpanKind

from osrerank.tracing.spans import UNRECORDED, Attributes, mark_failed, set_attributes, trace

READINESS = frozenset({"/ready", "/.well-known/ready"})
UNTRACED_PATHS = frozenset({"/health", "/live", "/ping", "/metrics"}) | READINESS
"""Monitoring requests these paths every few seconds, so they are not traced."""
TRACE_HEADERS = (b"traceparent", b"tracestate")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER_METHOD = "_OTHER"
"""All other methods are recorded under this name, so that clients cannot add arbitrary names to traces."""
MIN_FAILURE_STATUS = 500


def server_span(scope: Mapping[str, Any], request_id: str, *, queries: bool) -> AbstractContextManager[Span]:
    """Start the span of a request. The URL's query string is not recorded, because clients can put anything into it."""
    if scope["path"] in UNTRACED_PATHS:
        return UNRECORDED
    parent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in TRACE_HEADERS}
    host, port = scope.get("server") or (None, None)
    method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
    attributes: Attributes = {
        "http.request.method": method,
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "server.address": host,
        "server.port": port,
        "network.protocol.version": scope.get("http_version"),
        "osrerank.request.id": request_id,
    }
    name = method if method != OTHER_METHOD else "HTTP"
    return trace(name, attributes, queries=queries, kind=SpanKind.SERVER, parent=parent)


def record_response(span: Span, scope: Mapping[str, Any], status: int) -> None:
    """Record a request's route and the status of its response. A status of 500 or more marks the span as failed."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.update_name(f"{scope['method']} {route}")
    set_attributes(span, {"http.route": route, "http.response.status_code": status})
    if status >= MIN_FAILURE_STATUS:
        mark_failed(span, str(status))
