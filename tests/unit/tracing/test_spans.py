"""Spans: what is recorded, what is not, and that it costs nothing where nobody traces."""

import subprocess
import sys
import threading

import pytest

from osrerank.tracing import spans
from osrerank.tracing.attributes import operation_of, reason_of
from tests.servers import ROOT
from tests.tracing import ALWAYS_OFF, ParentBased, one, recording, told, tree

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "user=alice"}


def test_parts_belong_to_what_is_traced():
    with recording() as exporter:
        with spans.trace("search", "on", osrerank__index="notes"), spans.span("stage", kind="CLIENT", left_out=None):
            pass
        found = told(exporter)
    assert tree(found) == [["search", [["stage", []]]]]
    assert one(found, "search").attributes == {"osrerank.index": "notes"}
    assert one(found, "stage").kind == "CLIENT"
    assert one(found, "stage").attributes == {}


def test_a_part_of_nothing_is_not_recorded():
    with recording() as exporter:
        assert spans.span("stage") is spans.NOTHING
        assert spans.current() is spans.NOTHING
        assert spans.headers() == {}
        assert spans.trace("search", "off") is spans.NOTHING
    assert told(exporter) == []


def test_of_an_error_only_the_class_is_kept():
    with recording() as exporter, pytest.raises(ValueError, match="secret"), spans.trace("search", "on"):
        raise ValueError("a secret text")
    (found,) = told(exporter)
    assert found.is_error
    assert found.attributes == {"error.type": "ValueError"}
    assert found.events == {}
    assert "secret" not in str(exporter.get_finished_spans()[0].to_json())


def test_a_trace_goes_on_where_its_headers_say_and_without_its_baggage():
    with recording() as exporter, spans.trace("request", "on", parent=PARENT):
        sent = spans.headers()
    (found,) = told(exporter)
    assert (found.trace, found.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert sent == {"traceparent": f"00-{found.trace}-{found.span}-01"}


@pytest.mark.parametrize("given", ["", "nonsense", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ü" * 9_999])
def test_headers_that_are_no_trace_begin_a_new_one(given):
    with recording() as exporter, spans.trace("request", "on", parent={"traceparent": given}):
        pass
    (found,) = told(exporter)
    assert found.parent == ""


def test_what_is_not_sampled_costs_one_span_and_is_not_sampled_elsewhere():
    with recording(ParentBased(ALWAYS_OFF)) as exporter, spans.trace("search", "on") as traced:
        assert traced is spans.NOTHING
        assert spans.span("stage") is spans.NOTHING
        assert not spans.is_recording()
        flags = spans.headers()["traceparent"].rpartition("-")[2]
        assert not int(flags, 16) & 1  # the bit that says "sampled"
    assert told(exporter) == []


def test_a_thread_carries_the_trace_on():
    def part():
        with spans.span("part"):
            pass

    with recording() as exporter:
        with spans.trace("search", "on"):
            threads = [threading.Thread(target=function) for function in (spans.carried(part), part)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert tree(told(exporter)) == [["search", [["part", []]]]]


@pytest.mark.long
def test_without_a_tracer_nothing_is_imported():
    code = """
import sys
from tests.rankings import client_for
assert client_for(["salt"]).search("salt", index="i", rerank=True)["rerank"]["applied"] is True
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_reason_is_its_code_and_a_sentence_only_where_queries_may_be_told():
    with recording():
        for tracing, told_of in (("on", {}), ("queries", {"osrerank__reason": "mono: cannot read 'a secret'"})):
            with spans.trace("search", tracing) as search:
                found = reason_of(search, "mono: cannot read 'a secret'", "scoring")
            assert found == {"osrerank__reason__code": "scoring", **told_of}


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "/notes,more/_mapping", ("get_mapping", "notes,more")),
        ("POST", "/a%20b/_search", ("search", "a b")),
        ("POST", "/_mtermvectors", ("mtermvectors", None)),
        ("PUT", "/ubi_queries", ("put_index", "ubi_queries")),
        ("GET", "/", ("get_index", None)),
    ],
)
def test_the_operation_of_a_side_request(method, path, operation):
    assert operation_of(method, path) == operation
