"""Set the attributes of spans, by OpenTelemetry's semantic conventions for databases, HTTP and reranking.

The conventions for reranking, ``gen_ai.operation.name`` "rerank" and ``gen_ai.rerank.*``, are a proposal, which may
change. Names with ``osrerank.`` are osrerank's own. In keyword arguments, ``__`` stands for a dot.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

from osrerank.tracing.spans import NOTHING, UnrecordedSpan, Value, is_recording, span
from osrerank.types import StageReport

PORTS = {"http": 80, "https": 443}


def db_attributes(hosts: Sequence[Mapping[str, Any]] | None, operation: str, index: Any) -> dict[str, Value]:
    """Return the attributes of a request to the search engine.

    Args:
        hosts: the cluster's hosts; None for the embedded engine.
        operation: the name of the operation, such as ``search``.
        index: a name, several, or None for all.
    """
    host: Mapping[str, Any] = hosts[0] if hosts and len(hosts) == 1 else {}  # of several, the transport picks one
    return {
        "db__system__name": "osrerank.embedded" if hosts is None else "opensearch",
        "db__operation__name": operation,
        "db__collection__name": names_of(index),
        "server__address": host.get("host"),
        "server__port": host.get("port"),
    }


def names_of(index: Any) -> str | None:
    """Return the names of indices, separated by commas; None for all indices."""
    return index if isinstance(index, str) or index is None else ",".join(index)


def operation_of(method: str, path: str) -> tuple[str, str | None]:
    """Return a side request's operation and indices: for a GET of ``/notes/_mapping``, "get_mapping" and "notes"."""
    parts = [unquote(part) for part in path.split("/") if part]
    action = next((part for part in parts if part.startswith("_")), "")
    names = parts[0] if parts and not parts[0].startswith("_") else None
    kind = action.lstrip("_") or "index"
    return (kind if method == "POST" else f"{method.lower()}_{kind}"), names


def http_span(method: str, url: str) -> AbstractContextManager[UnrecordedSpan]:
    """Begin the span of an HTTP request to another server."""
    if not is_recording():
        return NOTHING
    parts = urlsplit(url)
    return span(
        method,
        kind="CLIENT",
        http__request__method=method,
        server__address=parts.hostname,
        server__port=parts.port or PORTS[parts.scheme],
        url__full=url,
    )


def tell_status(span: UnrecordedSpan, status: int) -> None:
    """Set the HTTP status of an answer; the span fails if it is 400 or above."""
    span.set(http__response__status_code=status)
    if status >= HTTPStatus.BAD_REQUEST:
        span.fail(str(status))


def tell_report(span: UnrecordedSpan, report: StageReport) -> None:
    """Set a stage's attributes from its report; an event says so if it was not wholly applied."""
    span.set(
        gen_ai__operation__name="rerank",
        gen_ai__request__model=report.model or None,
        gen_ai__rerank__candidate__count=report.candidates,
        osrerank__stage__applied=str(report.applied).lower(),
        osrerank__stage__inferences=report.inferences,
        osrerank__stage__cached=report.cached,
        osrerank__stage__truncated=report.truncated,
        osrerank__stage__failed=report.failed,
    )
    if report.applied is not True and not report.skipped:
        span.event("osrerank.degraded", **reason_of(span, report.reason, report.code))


def tell_outcome(span: UnrecordedSpan, *, applied: bool | str, reason: str | None, code: str | None) -> None:
    """Set whether a search was reranked; an event says so if it was not, or only in part."""
    shown = str(applied).lower()
    span.set(osrerank__applied=shown)
    if applied is not True:
        span.event("osrerank.degraded", osrerank__applied=shown, **reason_of(span, reason or "", code))


def reason_of(span: UnrecordedSpan, reason: str, code: str | None) -> dict[str, Value]:
    """Return the attributes with a reason: its code, and the whole sentence only if the span may tell queries.

    A sentence may quote what another program said, and that may quote a text.
    """
    told: dict[str, Value] = {"osrerank__reason__code": code and str(code)}
    return told | ({"osrerank__reason": reason or None} if span.tells_queries else {})
