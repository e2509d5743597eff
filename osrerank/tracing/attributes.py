"""Attributes of spans. Their names follow OpenTelemetry's semantic conventions for databases, HTTP and reranking.

The conventions for reranking (``gen_ai.operation.name`` "rerank" and ``gen_ai.rerank.*``) are a proposal that might
change. Names that begin with ``osrerank.`` are not from any convention.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

from opentelemetry.trace import Span, SpanKind, get_current_span

from osrerank.tracing import spans
from osrerank.tracing.spans import Attributes
from osrerank.types import StageReport
from osrerank.types.engine import Engine

DEFAULT_PORTS = {"http": 80, "https": 443}
"""The default port of each URL scheme."""


def build_db_attributes(engine: Engine, hosts: Sequence[Mapping[str, Any]], operation: str, index: Any) -> Attributes:
    """Return the attributes of a request to the search engine.

    Args:
        engine: the search engine.
        hosts: the hosts of the client, such as ``[{"host": "localhost", "port": 9200}]``. The embedded engine has none.
        operation: the operation, such as ``search``.
        index: an index name, a list of names, or None for all indices.
    """
    host = hosts[0] if len(hosts) == 1 else {}  # of several hosts, the transport will choose one
    return {
        "db.system.name": "osrerank.embedded" if engine.is_embedded else engine.value.lower(),
        "db.operation.name": operation,
        "db.collection.name": join_names(index),
        "server.address": host.get("host"),
        "server.port": host.get("port"),
    }


def join_names(index: Any) -> str | None:
    """Return the names of indices as ``a,b``, or None for all indices."""
    return index if isinstance(index, str) or index is None else ",".join(index)


def describe_request(method: str, path: str) -> tuple[str, str | None]:
    """Return the operation and the index names of a request: "get_mapping" and "notes" for ``GET /notes/_mapping``.

    ``POST`` is not part of the operation: it is "search" for ``POST /_search``. The path has no index names, so they
    are None.
    """
    parts = [unquote(part) for part in path.split("/") if part]
    if not parts:
        return "info", None
    names = None if parts[0].startswith("_") else parts[0]
    action = next((part for part in parts if part.startswith("_")), "").lstrip("_")
    action = action or "index"  # a path such as /notes
    return (action if method == "POST" else f"{method.lower()}_{action}"), names


def create_http_span(method: str, url: str) -> AbstractContextManager[Span]:
    """Create the span of an HTTP request to another server."""
    if not spans.is_recording():
        return spans.UNRECORDED
    parts = urlsplit(url)
    attributes: Attributes = {
        "http.request.method": method,
        "server.address": parts.hostname,
        "server.port": parts.port or DEFAULT_PORTS[parts.scheme],
        "url.full": url,
    }
    return spans.span(method, attributes, kind=SpanKind.CLIENT)


def set_http_status(span: Span, status: int) -> None:
    """Record the HTTP status of a response on its span. If it is 400 or higher, the span is marked as failed."""
    spans.set_attributes(span, {"http.response.status_code": status})
    if status >= HTTPStatus.BAD_REQUEST:
        spans.mark_failed(span, str(status))


def set_stage_attributes(span: Span, report: StageReport) -> None:
    """Record a stage's report on its span. If it was not fully applied, add an event to the current span.

    A stage that the pipeline intentionally skipped adds no event.
    """
    attributes: Attributes = {
        "gen_ai.operation.name": "rerank",
        "gen_ai.request.model": report.model or None,
        "gen_ai.rerank.candidate.count": report.candidates,
        "osrerank.stage.applied": str(report.applied).lower(),
        "osrerank.stage.inferences": report.inferences,
        "osrerank.stage.cached": report.cached,
        "osrerank.stage.truncated": report.truncated,
        "osrerank.stage.failed": report.failed,
    }
    spans.set_attributes(span, attributes)
    if report.applied is not True and not report.skipped:
        spans.add_event("osrerank.degraded", reason_attributes(report.reason, report.code))


def set_search_outcome(*, applied: bool | str, reason: str | None, code: str | None) -> None:
    """Record on the current span whether a search was reranked. If it was not, or only partly, add an event.

    Args:
        applied: True, ``"partial"`` or False, as in the response.
        reason: why the search was not reranked, or only partly. None if it was.
        code: the code of the reason.
    """
    if not spans.is_recording():
        return
    attributes: Attributes = {"osrerank.applied": str(applied).lower()}
    spans.set_attributes(get_current_span(), attributes)
    if applied is not True:
        spans.add_event("osrerank.degraded", {**attributes, **reason_attributes(reason or "", code)})


def reason_attributes(reason: str, code: str | None) -> Attributes:
    """Return the attributes of a reason: its code, and also its sentence if the trace may contain queries.

    The sentence can quote a message of the engine or the model, which can quote a query or a document.
    """
    attributes: Attributes = {"osrerank.reason.code": None if code is None else str(code)}
    return {**attributes, "osrerank.reason": reason or None} if spans.may_record_queries() else attributes
