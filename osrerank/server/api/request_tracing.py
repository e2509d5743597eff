"""Record an OpenTelemetry span for each HTTP request. It belongs to the trace that the request's headers name."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import Span, SpanKind

from osrerank.tracing.spans import UNRECORDED, Attributes, mark_failed, set_attributes, start_trace

READINESS_PATHS = frozenset({"/ready", "/.well-known/ready"})
UNTRACED_PATHS = frozenset({"/health", "/live", "/ping", "/metrics"}) | READINESS_PATHS
"""The paths that are not traced, because monitoring requests them every few seconds."""
TRACE_HEADERS = (b"traceparent", b"tracestate")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER_METHOD = "_OTHER"
"""The recorded name of a method that is not in `METHODS`, so that clients cannot add arbitrary names to traces."""
MIN_FAILURE_STATUS = 500
"""The lowest HTTP status that marks a span as failed."""


def server_span(scope: Mapping[str, Any], request_id: str, *, records_queries: bool) -> AbstractContextManager[Span]:
    """Return the span of a request, which starts and ends with the context.

    The URL's query string is not recorded, because clients can put anything into it. With ``records_queries``, the
    spans may contain search queries.
    """
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
    return start_trace(name, attributes, records_queries=records_queries, kind=SpanKind.SERVER, parent=parent)


def record_response(span: Span, scope: Mapping[str, Any], status: int) -> None:
    """Record a request's route and the status of its response. With a status of 500 or more, the span has failed."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.update_name(f"{scope['method']} {route}")
    set_attributes(span, {"http.route": route, "http.response.status_code": status})
    if status >= MIN_FAILURE_STATUS:
        mark_failed(span, str(status))
