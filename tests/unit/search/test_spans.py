"""A search as a trace: each client, each way in, and what a trace tells of a search that was not wholly reranked."""

import asyncio
import threading

import pytest
from opentelemetry import trace

from osrerank import Reranker
from osrerank.aio import connect_async
from osrerank.errors import InferenceError
from osrerank.testing import FunctionScorer
from tests import rankings
from tests.rankings import response_of
from tests.tracing import one, recording, told, tree

TEXTS = ["salt and water", "a secret", "water"]
FIELDS = {"fields": ["text"], "query_fields": ["text"]}
LOOKUPS = [["get_mapping notes", []], ["info _all", []], ["get_settings notes", []]]
FIRST_PASS = [["search notes", []], ["stage mono", []]]


def client_for(scorer=None, answer=TEXTS):
    return rankings.client_for(answer, scorer or FunctionScorer(), rerank=FIELDS)


@pytest.fixture
def exporter():
    with recording() as exporter:
        yield exporter


def test_a_search_is_a_trace_of_its_first_pass_and_its_stages(exporter):
    with trace.get_tracer("application").start_as_current_span("request"):
        answer = client_for().search("salt", index="notes", rerank=True)
    assert answer["rerank"]["applied"] is True
    spans = told(exporter)
    assert tree(spans) == [["request", [["osrerank.search", [*LOOKUPS, *FIRST_PASS]]]]]
    assert one(spans, "osrerank.search").attributes == {"osrerank.index": "notes", "osrerank.applied": "true"}
    first, stage = one(spans, "search notes"), one(spans, "stage mono").attributes
    attributes = {"system.name": "opensearch", "operation.name": "search", "collection.name": "notes"}
    assert first.kind == "CLIENT"
    assert first.attributes.items() >= {f"db.{name}": value for name, value in attributes.items()}.items()
    assert (stage["gen_ai.operation.name"], stage["gen_ai.request.model"]) == ("rerank", "testing/function")
    assert (stage["gen_ai.rerank.candidate.count"], stage["osrerank.stage.inferences"]) == (3, 3)
    assert not any(span.is_error or span.events for span in spans)
    assert "salt" not in str(spans)  # the query, or a document


def test_a_search_without_reranking_is_not_traced(exporter):
    with trace.get_tracer("application").start_as_current_span("request"):
        client_for().search("salt", index="notes")
    assert tree(told(exporter)) == [["request", []]]


def test_each_search_of_a_multi_search_has_a_span(exporter):
    answer = {"took": 3, "responses": [response_of(TEXTS), response_of([])]}
    query = {"query": {"match": {"text": "salt"}}}
    client_for(answer=answer).msearch(body=[{"index": "notes"}, query, {"index": "notes"}, query], rerank=True)
    spans = told(exporter)
    reranked = [["osrerank.rerank", [["stage mono", []]]], ["osrerank.rerank", []]]
    assert tree(spans) == [["osrerank.msearch", [*LOOKUPS, ["msearch", []], *reranked]]]
    assert one(spans, "msearch").attributes["db.operation.batch.size"] == 2
    applied = [span.attributes["osrerank.applied"] for span in spans if span.name == "osrerank.rerank"]
    assert applied == ["true", "false"]


def test_a_failed_stage_has_an_error_span_within_a_successful_search(exporter):
    client_for(FunctionScorer(broken=True)).search("salt", index="notes", rerank=True)
    spans = told(exporter)
    stage, search = one(spans, "stage mono"), one(spans, "osrerank.search")
    assert (stage.is_error, stage.attributes["error.type"]) == (True, "osrerank.errors.InferenceError")
    assert (search.is_error, search.attributes["osrerank.applied"]) == (False, "false")
    assert search.events["osrerank.degraded"] == {"osrerank.applied": "false", "osrerank.reason.code": "scoring"}


def test_a_search_that_raises_has_a_span_with_an_error(exporter):
    client = client_for(FunctionScorer(broken=True))
    with pytest.raises(InferenceError):
        client.search("salt", index="notes", rerank={"on_failure": "raise"})
    assert one(told(exporter), "osrerank.search").attributes["error.type"] == "osrerank.errors.InferenceError"


def test_the_span_of_a_partly_reranked_search_has_the_reason(exporter):
    client_for(FunctionScorer(unscorable=frozenset({"a secret"}))).search("salt", index="notes", rerank=True)
    spans = told(exporter)
    stage = one(spans, "stage mono")
    assert stage.attributes["osrerank.stage.failed"] == 1
    assert stage.events["osrerank.degraded"] == {"osrerank.reason.code": "scoring"}
    assert one(spans, "osrerank.search").attributes["osrerank.applied"] == "partial"
    assert "osrerank.degraded" in one(spans, "osrerank.search").events
    assert "secret" not in str(spans)


def test_queries_are_traced_only_on_request(exporter, monkeypatch):
    monkeypatch.setenv("OSRERANK_TRACE_QUERIES", "true")
    client_for(FunctionScorer(broken=True)).search("salt", index="notes", rerank=True)
    search = one(told(exporter), "osrerank.search")
    assert search.attributes["osrerank.query"] == "salt"
    assert search.events["osrerank.degraded"]["osrerank.reason"].startswith("mono: ")


def test_ranking_texts_is_traced_in_any_thread(exporter):
    together = threading.Barrier(2, timeout=10)
    ranker = Reranker(scorer=FunctionScorer(lambda _query, _text: float(together.wait() >= 0)))
    with trace.get_tracer("application").start_as_current_span("request"):
        ranker.rank_many(["salt", "water"], [TEXTS, TEXTS])
    assert tree(told(exporter)) == [["request", [["osrerank.rerank", [["stage mono", []]]]] * 2]]


def test_the_asynchronous_client_keeps_searches_at_the_same_time_apart(exporter, tmp_path):
    async def searches():
        client = connect_async(f"embedded:{tmp_path}", scorer=FunctionScorer(), rerank=FIELDS)
        await client.index(index="notes", body={"text": "water"}, refresh=True)
        await asyncio.gather(*(client.search("water", index="notes", rerank=True) for _ in range(3)))
        await client.close()

    asyncio.run(searches())
    spans = told(exporter)
    assert tree(spans) == [["osrerank.search", [LOOKUPS[0], *FIRST_PASS]]] * 3
    systems = {span.attributes["db.system.name"] for span in spans if span.name == "search notes"}
    assert systems == {"osrerank.embedded"}


def test_the_spans_of_a_search_name_the_engine(exporter):
    rankings.client_for(TEXTS, engine="elasticsearch").search("salt", index="notes", rerank=True)
    systems = {span.attributes["db.system.name"] for span in told(exporter) if "db.system.name" in span.attributes}
    assert systems == {"elasticsearch"}
