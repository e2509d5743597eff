"""Searches with nothing set: their deadline, what counts against it, what is said of documents without vectors."""

import logging
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from click import Context

import osrerank.options
from osrerank import Reranker, connect
from osrerank._log_throttle import LogThrottle
from osrerank.cli.options import open_client
from osrerank.scoring import registry
from osrerank.search import slow
from osrerank.testing import CannedTransport, FunctionScorer, ManualClock
from osrerank.types import NEVER, Vectors
from tests import rankings
from tests.letters import Letters
from tests.rankings import response_of

TEXTS = [f"low pressure {number}" for number in range(100)]
DOCUMENT_S = 0.02
"""Time that a document takes to be encoded: 100 of them take 2 seconds."""


class SlowLetters(Letters):
    """Takes its time for each document, until the deadline."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def encode(self, texts, side, *, deadline=NEVER):
        rows = super().encode(texts, side).rows
        for index in range(len(texts) if side == "document" else 0):
            if deadline.passed:
                rows[index:] = np.nan
                break
            self.clock.sleep(DOCUMENT_S)
        return Vectors(rows)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    monkeypatch.setattr(slow, "missing_vectors_throttle", LogThrottle(float("inf")))


def client_for(clock, scorer=None, answer=TEXTS, **options):
    return rankings.client_for(answer, scorer or SlowLetters(clock), clock=clock, **options)


def slow_scorer(clock):
    return FunctionScorer(seconds_per_pair=DOCUMENT_S, sleep=clock.sleep)


def marks_of(client, **options):
    return client.search("low", index="notes", rerank=options or True)["rerank"]


def test_a_search_by_vectors_has_a_default_deadline_of_a_second(clock):
    began_s = clock()
    marks = marks_of(client_for(clock))
    assert clock() - began_s == pytest.approx(1, abs=DOCUMENT_S)
    assert (marks["applied"], marks["stages"][0]["lacking"]) == ("partial", 50)
    assert marks["reason"] == "vectors: the deadline passed after 50 of 100 candidates"


@pytest.mark.parametrize("named", [{"deadline_ms": None}, {"deadline_ms": 5_000}, {"depth": 20}])
def test_a_search_cut_short_names_remedies(clock, named):
    assert marks_of(client_for(clock), **named)["applied"] is True


def test_custom_scorers_pairs_and_sentences_have_no_default_deadline(clock):
    assert marks_of(client_for(clock, slow_scorer(clock)))["applied"] is True
    assert marks_of(client_for(clock), sentences=True)["applied"] is True
    client = client_for(clock, duo_scorer=slow_scorer(clock))
    assert marks_of(client, pipeline="vectors-duo", duo_depth=10)["applied"] is True


def test_texts_and_foreign_responses_have_no_default_deadline(clock):
    client = client_for(clock)
    assert client.rerank_response(response_of(TEXTS), "low")["rerank"]["applied"] is True
    assert client.rerank("low", TEXTS).reports[0].applied is True
    assert len(Reranker(scorer=SlowLetters(clock)).rank("low", TEXTS)) == len(TEXTS)


def test_commands_have_no_default_deadline():
    context = Context.__new__(Context)
    context.obj = dict.fromkeys(("url", "model", "vector_model", "duo_model", "backend", "dtype", "redis_url"))
    with open_client(context) as client:
        assert client.searcher.deadline_ms is None


def test_each_search_of_a_multi_search_has_its_own_second(clock):
    answer = {"took": 1, "responses": [response_of([f"{number} {text}" for text in TEXTS]) for number in range(3)]}
    client = client_for(clock, answer=answer)
    body = [line for _ in range(3) for line in ({"index": "notes"}, {"query": {"match": {"text": "low"}}})]
    marks = [response["rerank"] for response in client.msearch(body=body, rerank=True)["responses"]]
    assert [mark["stages"][0]["lacking"] for mark in marks] == [50, 50, 50]
    reranked = client.msearch(body=body, rerank={"deadline_ms": None})["responses"]
    assert all(search_response["rerank"]["applied"] is True for search_response in reranked)


def test_documents_without_vectors_are_logged_once(clock, caplog):
    client = client_for(clock)
    for _ in range(3):
        marks_of(client)
    lines = [record for record in caplog.records if "vectors-lacking" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.WARNING]
    assert "(50 of the 100 candidates of this search lacked vectors)" in lines[0].getMessage()
    assert "osrerank vectors build --index notes   (" in lines[0].getMessage()


def loading(monkeypatch, clock, load):
    """Return a client whose model is loaded by a function."""
    monkeypatch.setattr(registry, "load", lambda *_args, **_options: load() or SlowLetters(clock))
    return connect("http://localhost:1", clock=clock, transport_class=CannedTransport, answer=response_of(TEXTS[:10]))


def test_loading_the_model_does_not_count_against_the_default_deadline(clock, monkeypatch):
    assert marks_of(loading(monkeypatch, clock, lambda: clock.sleep(30)))["applied"] is True


def test_a_search_during_the_loading_of_the_model_says_that_the_model_is_loading(clock, monkeypatch):
    go_on = threading.Event()

    def load():
        clock.sleep(1)
        go_on.wait(30)

    client = loading(monkeypatch, clock, load)
    marks = marks_of(client, deadline_ms=50)
    assert marks["applied"] is False
    assert "was not loaded by the deadline; client.warm_up() or connect(..., warm=" in marks["reason"]
    go_on.set()
    client.warm_up()
    assert marks_of(client, deadline_ms=1_000)["applied"] is True
    client.close()


def test_a_search_after_warm_up_does_not_wait_for_the_model(clock, monkeypatch):
    loads = []
    monkeypatch.setattr(registry, "load", lambda *_args, **_options: loads.append(1) or SlowLetters(clock))
    connect("http://localhost:1", warm=True).close()
    assert loads == [1]
    connect("http://localhost:1").close()
    assert loads == [1]


class SlowEngine(CannedTransport):
    """Takes 300 ms for one kind of request."""

    slow = "_mapping"

    def perform_request(self, method, url, *args, **options):
        if self.slow in url:
            self.clock.sleep(0.3)
        return super().perform_request(method, url, *args, **options)


def test_reading_the_mapping_counts_against_the_deadline(clock):
    client = client_for(clock, FunctionScorer(), transport_class=SlowEngine)
    client.transport.clock = clock
    marks = marks_of(client, deadline_ms=250)
    assert marks["applied"] is False
    assert "the deadline passed" in marks["reason"]
    assert marks_of(client, deadline_ms=60_000)["applied"] is True


def test_the_first_pass_counts_against_the_deadline_and_is_never_cut_short(clock):
    client = client_for(clock, FunctionScorer(lambda _query, text: float(text.split()[-1])), transport_class=SlowEngine)
    client.transport.clock, client.transport.slow = clock, "_search"
    response = client.search("low", index="notes", size=100, rerank={"deadline_ms": 250, "fields": "text"})
    assert rankings.ids(response) == [f"d{number}" for number in range(100)]
    assert response["rerank"]["applied"] is False
    assert "the deadline passed" in response["rerank"]["reason"]
    assert "timeout" not in str(client.transport.requests)


def test_a_default_search_imports_no_module_of_unused_options(clock):
    client, called = client_for(clock, FunctionScorer()), set()
    marks_of(client)
    sys.setprofile(lambda frame, event, _: called.add(Path(frame.f_code.co_filename)) if event == "call" else None)
    try:
        assert marks_of(client)["applied"] is True
    finally:
        sys.setprofile(None)
    folder = Path(osrerank.options.__file__).parent
    assert {path.name for path in called if path.parent == folder} == {"defaults.py", "rerank.py"}
