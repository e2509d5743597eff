"""Spans that tests can look at: of this process in memory, and of others through a stand-in of an OTLP collector."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

import pytest

from tests.waiting import wait_until

pytest.importorskip("opentelemetry.sdk", reason="pip install 'osrerank[dev]'")

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

__all__ = ["ALWAYS_OFF", "Collector", "ParentBased", "Told", "one", "recording", "told", "tree"]


class Told(NamedTuple):
    """A span, wherever it was recorded; ids are hexadecimal, ``parent`` is empty at the root."""

    name: str
    span: str
    parent: str
    trace: str
    kind: str
    attributes: dict
    events: dict
    is_error: bool
    service: str


@contextlib.contextmanager
def recording(sampler: Sampler = ALWAYS_ON) -> Iterator[InMemorySpanExporter]:
    """Trace in this process; the tracer provider of before is the global one again at the end."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, provider  # may be set but once otherwise
    try:
        yield exporter
    finally:
        trace._TRACER_PROVIDER = before


def told(exporter: InMemorySpanExporter) -> list[Told]:
    """Return the spans that this process has ended."""
    return [_own(span) for span in exporter.get_finished_spans()]


def tree(spans: list[Told], parent: str = "") -> list:
    """Return names as a tree: ``[name, [child, ...]]``, in the order of their end."""
    return [[span.name, tree(spans, span.span)] for span in spans if span.parent == parent]


def one(spans: list[Told], name: str) -> Told:
    """Return the only span whose name begins so."""
    (found,) = [span for span in spans if span.name.startswith(name)]
    return found


class Collector:
    """Takes what OTLP exporters send to its URL."""

    def __init__(self) -> None:
        self.spans: list[Told] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _taking(self.spans))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, *names: str, trace: str = "", seconds: float = 30.0) -> list[Told]:
        """Return the spans, of one trace where it is named, once there is one for the beginning of each name."""

        def found() -> list[Told]:
            return [span for span in self.spans if trace in ("", span.trace)]

        def is_there() -> bool:
            return all(any(span.name.startswith(name) for span in found()) for name in names)

        wait_until(is_there, seconds, lambda: str([span.name for span in found()]))
        return found()


def _taking(spans: list[Told]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                spans.extend(_foreign(span, service) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None: ...

    return Handler


def _own(span: ReadableSpan) -> Told:
    return Told(
        span.name,
        f"{span.context.span_id:016x}",
        "" if span.parent is None else f"{span.parent.span_id:016x}",
        f"{span.context.trace_id:032x}",
        span.kind.name,
        dict(span.attributes or {}),
        {event.name: dict(event.attributes or {}) for event in span.events},
        not span.status.is_ok and not span.status.is_unset,
        "",
    )


def _foreign(span, service: str) -> Told:
    kind = ("", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")[span.kind]
    events = {event.name: _values(event.attributes) for event in span.events}
    ids = span.span_id.hex(), span.parent_span_id.hex(), span.trace_id.hex()
    return Told(span.name, *ids, kind, _values(span.attributes), events, span.status.code == 2, service)


def _values(pairs) -> dict:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
