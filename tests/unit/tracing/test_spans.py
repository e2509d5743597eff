"""Spans: what is recorded, what is not, and what a thread carries on."""

import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from osrerank.tracing import spans
from osrerank.tracing.attributes import describe_request, reason_attributes
from tests.servers import ROOT
from tests.tracing import ALWAYS_OFF, ParentBased, one, recording, told, tree

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "user=alice"}


def test_child_spans_belong_to_their_search():
    with recording() as exporter:
        with (
            spans.start_trace("search", {"osrerank.index": "notes"}),
            spans.span("stage", {"left.out": None}, kind=SpanKind.CLIENT),
        ):
            pass
        found = told(exporter)
    assert tree(found) == [["search", [["stage", []]]]]
    assert one(found, "search").attributes == {"osrerank.index": "notes"}
    assert one(found, "stage").kind == "CLIENT"
    assert one(found, "stage").attributes == {}


def test_a_child_span_without_a_search_is_not_recorded():
    with recording() as exporter:
        assert spans.span("stage") is spans.UNRECORDED
        assert spans.trace_headers() == {}
    assert told(exporter) == []


def test_a_child_span_below_an_applications_span_is_not_recorded():
    with recording() as exporter, trace.get_tracer("application").start_as_current_span("request"):
        assert spans.span("stage") is spans.UNRECORDED
        spans.add_event("no_model", {})
    assert tree(told(exporter)) == [["request", []]]
    assert told(exporter)[0].events == {}


def test_a_span_keeps_only_the_class_of_an_error():
    with recording() as exporter, pytest.raises(ValueError, match="secret"), spans.start_trace("search", {}):
        raise ValueError("a secret text")
    (span,) = told(exporter)
    assert span.is_error
    assert span.attributes == {"error.type": "ValueError"}
    assert span.events == {}
    assert "secret" not in str(exporter.get_finished_spans()[0].to_json())


def test_a_trace_continues_from_its_headers_without_baggage():
    with recording() as exporter, spans.start_trace("request", {}, parent=PARENT):
        sent = spans.trace_headers()
    (span,) = told(exporter)
    assert (span.trace, span.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert sent == {"traceparent": f"00-{span.trace}-{span.span}-01"}


@pytest.mark.parametrize("given", ["", "nonsense", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ü" * 9_999])
def test_malformed_trace_headers_begin_a_new_trace(given):
    with recording() as exporter, spans.start_trace("request", {}, parent={"traceparent": given}):
        pass
    (span,) = told(exporter)
    assert span.parent == ""


def test_an_unsampled_trace_stays_unsampled_in_other_processes():
    with recording(ParentBased(ALWAYS_OFF)) as exporter, spans.start_trace("search", {}) as traced:
        assert not traced.is_recording()
        assert spans.span("stage") is spans.UNRECORDED
        assert not spans.is_recording()
        flags = spans.trace_headers()["traceparent"].rpartition("-")[2]
        assert not int(flags, 16) & 1  # the bit that says "sampled"
    assert told(exporter) == []


def test_a_trace_continues_in_another_thread():
    def part():
        with spans.span("part"):
            pass

    with recording() as exporter:
        with spans.start_trace("search", {}):
            threads = [threading.Thread(target=function) for function in (spans.bind_trace(part), part)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert tree(told(exporter)) == [["search", [["part", []]]]]


@pytest.mark.long
def test_a_search_imports_no_sdk():
    code = """
import sys
from tests.rankings import client_for
assert client_for(["salt"]).search("salt", index="i", rerank=True)["rerank"]["applied"] is True
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_without_an_sdk_the_callers_trace_headers_are_forwarded():
    code = f"""
from osrerank.tracing import spans
with spans.start_trace("request", {{}}, parent={PARENT}), spans.span("stage"):
    print(spans.trace_headers())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == str({"traceparent": PARENT["traceparent"]})


@pytest.mark.parametrize("queries", [False, True])
def test_a_span_has_the_full_reason_only_if_queries_are_traced(queries):
    with recording() as exporter, spans.start_trace("search", {}, records_queries=queries):
        spans.add_event("degraded", reason_attributes("the server answered 422: cannot read a secret", "server"))
    sentence = {"osrerank.reason": "the server answered 422: cannot read a secret"} if queries else {}
    assert told(exporter)[0].events["degraded"] == {"osrerank.reason.code": "server", **sentence}


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "/notes,more/_mapping", ("get_mapping", "notes,more")),
        ("POST", "/a%20b/_search", ("search", "a b")),
        ("POST", "/_mtermvectors", ("mtermvectors", None)),
        ("PUT", "/ubi_queries", ("put_index", "ubi_queries")),
        ("GET", "/", ("info", None)),
    ],
)
def test_a_request_beside_the_search_has_its_operation_in_the_span(method, path, operation):
    assert describe_request(method, path) == operation
