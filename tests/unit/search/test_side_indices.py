"""Side indices of document vectors: what searches ask of them, and what they write to them."""

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from opensearchpy import AuthorizationException, ConnectionTimeout, OpenSearchException

from osrerank.client import to_engine_error
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.searcher import Searcher
from osrerank.search.side_indices import MAX_REPORTED, SideIndex, SideIndices
from osrerank.search.step import Computation, MultiSearchRequest, SearchRequest, SendLater
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import ArithmeticEncoder, FunctionScorer, ManualClock
from osrerank.types.engine import Engine
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import ROUNDED_BITS
from osrerank.vectors.storage import VectorStorage
from tests.bi_encoders import TINY

TEXTS = ["a long text about the wing of an aeroplane", "low pressure"]
SIDE = "osrerank-vectors-i"


def encoder() -> BiEncoder:
    """A bi-encoder whose vectors count the tokens of a text."""
    card = ModelCard("tiny", "cosine", kind="bi-encoder", pooling="cls")
    return BiEncoder(TINY, card, InputBuilder.load(TINY, card), ArithmeticEncoder())


def records_of(texts: Sequence[str]) -> dict[bytes, bytes]:
    vectors = DocumentVectors(encoder(), VectorStorage(bits=ROUNDED_BITS))
    return vectors.records.to_contents(vectors.find(texts).new_records)


class Cluster:
    """Answers the steps of searches as a cluster does, of some hits (index, text), with side indices of some texts.

    Attributes:
        requests: method and path of each request but searches.
        unread, unwritten: side indices that may not be read, or written.
        fault: raised in place of an answer about vectors.
        before: called before such a request.
    """

    def __init__(self, hits: Sequence[tuple[str, str]], sides: dict[str, Sequence[str]]) -> None:
        self.hits = [
            {"_index": index, "_id": str(at), "_score": 9.0 - at / 100, "_source": {"text": text}}
            for at, (index, text) in enumerate(hits)
        ]
        self.sides = {name: records_of(texts) for name, texts in sides.items()}
        self.requests, self.sizes = list[str](), list[int]()
        self.unread, self.unwritten = set[str](), set[str]()
        self.fault: Exception | None = None
        self.before: Any = lambda: None

    def perform(self, steps: Any, later: bool = True) -> Any:
        """Perform steps until they end; those for later at once, unless they are left out."""
        result, error = None, None
        try:
            while True:
                step = steps.throw(error) if error else steps.send(result)
                result, error = None, None
                try:
                    result = self._answer(step, later)
                except OpenSearchException as raised:
                    error = to_engine_error(raised)
        except StopIteration as end:
            return end.value

    def _answer(self, step: Any, later: bool) -> Any:
        if isinstance(step, Computation):
            return step.run()
        if isinstance(step, SendLater):
            return self.perform(step.steps) if later else None
        response = {"took": 1, "timed_out": False, "_shards": {"total": 1}, "hits": {"hits": self.hits}}
        if isinstance(step, SearchRequest):
            return response
        if isinstance(step, MultiSearchRequest):
            return {"responses": [response] * (len(step.lines) // 2)}
        if step.method == "GET":  # the mapping, or the settings: no default search pipeline
            return {"i": {"mappings": {"properties": {"text": {"type": "text"}}}}} if "_mapping" in step.path else {}
        self.requests.append(f"{step.method} {step.path}")
        self.before()
        if self.fault:
            raise self.fault
        return self._written(step.body) if step.path == "/_bulk" else self._read(step)

    def _read(self, step: Any) -> Any:
        names = step.path.split("/")[1].split(",")
        if self.unread & {*names}:
            raise AuthorizationException(403, "security_exception", {})
        self.sizes.append(step.body["size"])
        sides = [self.sides[name] for name in names if name in self.sides]
        keys = {bytes.fromhex(key) for key in step.body["query"]["ids"]["values"]}
        stored_records = {key: record for side in sides for key, record in side.items() if key in keys}
        records = {key.hex(): base64.b64encode(record).decode().rstrip("=") for key, record in stored_records.items()}
        hits = [{"_id": key, "fields": {"record": [record]}} for key, record in records.items()]
        return {"_shards": {"total": len(sides)}, "hits": {"hits": hits}}

    def _written(self, body: str) -> Any:
        items = []
        lines = [json.loads(line) for line in body.splitlines()]
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            if "create" in action:  # what builders are told
                items.append({"create": {"status": 201}})
                continue
            name, key = action["index"]["_index"], bytes.fromhex(action["index"]["_id"])
            if name in self.unwritten:
                items.append({"index": {"status": 403, "error": {"type": "security_exception"}}})
            else:
                self.sides[name][key] = base64.b64decode(document["record"])
                items.append({"index": {"status": 201}})
        return {"items": items}


@pytest.fixture(autouse=True)
def _only_side_indices(no_folder, monkeypatch):
    """Keep vectors in side indices alone."""
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))


def searcher(model: Any = None, clock: Any = time.monotonic, **settings: Any) -> Searcher:
    base = Defaults(Rerank(fields="text", query_fields="text"))
    return Searcher(RerankService(Settings.load(**settings), model or encoder(), clock=clock, has_index=True), base)


def search(searcher: Searcher, cluster: Cluster, later: bool = True, **options: Any) -> dict[str, Any]:
    """Search, and return the first stage's report."""
    response = cluster.perform(search_steps(searcher, "low", None, {}, index="i", rerank=options), later)
    return dict(response["rerank"]["stages"][0])


def cluster(sides: dict[str, Sequence[str]], texts: Sequence[str] = TEXTS) -> Cluster:
    return Cluster([("i", text) for text in texts], sides)


def test_stored_vectors_are_read_and_computed_vectors_are_written_after_the_answer():
    engine = cluster({SIDE: TEXTS[1:]})
    stage = search(searcher(), engine, later=False)
    assert (stage["known"], stage["encoded"]) == (1, 1)
    assert engine.requests == [f"POST /{SIDE}/_search"]  # the answer waits for no write
    stage = search(searcher(), engine)
    assert (stage["known"], stage["encoded"]) == (1, 1)
    assert engine.requests[1:] == [f"POST /{SIDE}/_search", "POST /_bulk"]
    stage = search(searcher(), engine)
    assert (stage["known"], stage["encoded"]) == (2, 0)
    assert engine.requests[3:] == [f"POST /{SIDE}/_search"]


def test_a_search_creates_no_side_index_and_looks_again_after_a_minute():
    clock, engine = ManualClock(), cluster({})
    shared_searcher = searcher(clock=clock)
    for _ in range(2):
        assert search(shared_searcher, engine)["encoded"] == 2
        clock.sleep(30)
    assert engine.requests == [f"POST /{SIDE}/_search"]
    engine.sides[SIDE] = records_of(TEXTS)
    clock.sleep(31)
    assert search(shared_searcher, engine)["encoded"] == 0
    assert engine.sides.keys() == {SIDE}


def test_vectors_in_the_local_store_are_not_requested(tmp_path):
    engine = cluster({SIDE: TEXTS})
    shared_searcher = searcher(vectors_folder=tmp_path, vectors_profile="standard")
    assert search(shared_searcher, engine)["known"] == 2
    shared_searcher.service.load_vectors(Rerank()).records.flush()  # what was read there is kept here
    for _ in range(2):
        assert search(shared_searcher, engine)["known"] == 2
    assert engine.requests == [f"POST /{SIDE}/_search"]


NO_VECTORS = {
    "model": (FunctionScorer(), {}),
    "text": (None, {"sentences": True}),
    "none": (None, {"pipeline": "none"}),
}


@pytest.mark.parametrize(("model", "options"), NO_VECTORS.values(), ids=NO_VECTORS)
def test_a_model_without_vectors_sends_no_request_to_a_side_index(model, options):
    engine = cluster({SIDE: TEXTS})
    engine.perform(search_steps(searcher(model), "low", None, {}, index="i", rerank=options or True))
    assert engine.requests == []


def test_side_indices_can_be_turned_off_and_are_off_in_the_embedded_engine():
    assert all(searcher(vectors=value).vectors is None for value in ("file", "redis", "off"))
    assert all(searcher(vectors=value).vectors is not None for value in ("index", None))
    service = RerankService(Settings.load(vectors="index"), encoder())
    assert Searcher(RerankService(Settings.load(), encoder()), Defaults(), engine=Engine.EMBEDDED).vectors is None
    assert Searcher(service, Defaults(), engine=Engine.EMBEDDED).vectors is not None


def test_a_fault_of_the_side_index_fails_no_search(caplog):
    engine, shared_searcher = cluster({SIDE: TEXTS}), searcher()
    engine.fault = ConnectionTimeout("TIMEOUT", "slow", None)
    for _ in range(2):
        assert search(shared_searcher, engine)["applied"] is True
    assert engine.requests == [f"POST /{SIDE}/_search"]  # left alone for a while
    assert caplog.text.count(f"{SIDE}: reads of document vectors pause for 10 s") == 1


def test_a_short_deadline_is_not_counted_as_a_failure_of_the_side_index(caplog):
    clock, engine = ManualClock(), cluster({SIDE: TEXTS})
    shared_searcher = searcher(clock=clock)
    engine.fault, engine.before = ConnectionTimeout("TIMEOUT", "slow", None), lambda: clock.sleep(1)
    engine.perform(search_steps(shared_searcher, "low", None, {}, index="i", rerank={"deadline_ms": 1000}))
    assert "no read" not in caplog.text
    engine.fault, engine.before = None, lambda: None
    assert search(shared_searcher, engine)["known"] == 2


def test_one_forbidden_side_index_does_not_hide_another(caplog):
    hits = [("i", TEXTS[0]), ("j", TEXTS[1])]
    engine, shared_searcher = Cluster(hits, {SIDE: TEXTS, "osrerank-vectors-j": TEXTS[1:]}), searcher()
    engine.unread = {SIDE}
    for _ in range(2):
        stage = search(shared_searcher, engine)
        assert (stage["known"], stage["encoded"]) == (1, 1)
    indices_read = [request.split("/")[1] for request in engine.requests if "_search" in request]
    assert indices_read == ["osrerank-vectors-i,osrerank-vectors-j", SIDE, *["osrerank-vectors-j"] * 2]
    assert caplog.text.count("this user may not read the document vectors") == 1


def test_a_forbidden_side_index_is_read_again_after_a_minute():
    clock, engine = ManualClock(), cluster({SIDE: TEXTS})
    shared_searcher, engine.unread = searcher(clock=clock), {SIDE}
    for _ in range(2):
        assert search(shared_searcher, engine)["known"] == 0
        clock.sleep(30)
    assert engine.requests == [f"POST /{SIDE}/_search"]
    engine.unread = set()
    assert search(shared_searcher, engine)["known"] == 2


def test_a_forbidden_write_to_a_side_index_is_logged_once_and_not_repeated(caplog):
    engine, shared_searcher = cluster({SIDE: []}), searcher()
    engine.unwritten = {SIDE}
    for _ in range(3):
        assert search(shared_searcher, engine)["encoded"] == 2
    assert engine.requests.count("POST /_bulk") == 1
    assert caplog.text.count("this user may not write the document vectors") == 1


def test_many_vectors_are_read_in_several_requests():
    engine = cluster({SIDE: []}, [f"text {number}" for number in range(1001)])
    search(searcher(), engine, depth=2000)
    assert engine.sizes == [250, 250, 250, 250, 1]


def test_the_side_index_decides_how_deep_an_open_depth_goes():
    texts = [f"text {number}" for number in range(130)]
    engine = cluster({SIDE: texts[100:117]}, texts)
    assert search(searcher(), engine, depth="auto")["candidates"] == 117


def test_a_multi_search_reads_vectors_of_all_searches_in_one_request():
    engine, shared_searcher = cluster({SIDE: TEXTS}), searcher()
    body = [line for text in ("low", "wing") for line in ({}, {"query": {"match": {"text": text}}})]
    answer = engine.perform(multi_search_steps(shared_searcher, body, "i", rerank=True, params={}))
    assert [response["rerank"]["stages"][0]["known"] for response in answer["responses"]] == [2, 2]
    assert engine.requests == [f"POST /{SIDE}/_search"]


def test_only_the_most_frequent_documents_are_counted() -> None:
    side = SideIndex(time.monotonic, SIDE)
    for number in range(20 * MAX_REPORTED):
        side.count_missing([("i", "often"), ("i", str(number))])
    counts = side.most_frequently_missing()
    assert len(counts) == MAX_REPORTED
    assert counts[0] == (("i", "often"), 20 * MAX_REPORTED)
    side.subtract_reported(counts)
    assert len(side.most_frequently_missing()) <= 2 * MAX_REPORTED - len(counts)


def test_a_user_who_may_not_write_reports_nothing() -> None:
    side_indices = SideIndices(EngineFinder(Engine.OPENSEARCH), time.monotonic)
    side_index = side_indices._get_state(SIDE)
    side_index.exists = True
    assert side_indices.report_steps([("i", "1")]) is not None
    assert side_indices.report_steps([("i", "1")]) is None  # it is not time
    side_index.reports.end()
    side_index.forbid("write", OSError())
    assert side_indices.report_steps([("i", "1")]) is None


def test_a_refused_report_is_kept_and_ends_writing_if_it_is_forbidden() -> None:
    side_indices = SideIndices(EngineFinder(Engine.OPENSEARCH), time.monotonic)
    side_index = side_indices._get_state(SIDE)
    side_index.exists = True
    steps = side_indices.report_steps([("i", "1")])
    assert steps is not None
    next(steps)
    with pytest.raises(StopIteration):
        steps.send({"items": [{"create": {"status": 403, "error": {"type": "security_exception"}}}]})
    assert side_index.most_frequently_missing() == [(("i", "1"), 1)]
    assert not side_index.may_write
