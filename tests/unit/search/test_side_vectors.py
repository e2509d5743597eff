"""The requests for document vectors around a search, performed by hand."""

import base64
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from opensearchpy import ConnectionTimeout, NotFoundError, RequestError

from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.retrieval.fields import Fields
from osrerank.retrieval.requests import SideRequest
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder
from osrerank.search.call import Refused, Reranked, Reranking, planned
from osrerank.search.searcher import Searcher
from osrerank.search.step import Scoring
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import ArithmeticEncoder, FunctionScorer, ManualClock
from osrerank.types import Deadline
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.index import EXISTS
from osrerank.vectors.record import ROUNDED
from osrerank.vectors.records import FetchedVectors
from tests.bi_encoders import TINY

HITS = [
    {"_index": "i", "_id": "long", "_score": 2.0, "_source": {"text": "a long text about the wing of an aeroplane"}},
    {"_index": "i", "_id": "short", "_score": 1.0, "_source": {"text": "low pressure"}},
]
RESPONSE = {"took": 1, "timed_out": False, "_shards": {}, "hits": {"total": {"value": 2}, "hits": HITS}}

SIDE = "i-osrerank-vectors"


def encoder() -> BiEncoder:
    """A bi-encoder whose vectors count the tokens of a text."""
    card = ModelCard("tiny", "cosine", kind="bi-encoder", pooling="cls")
    return BiEncoder(TINY, card, InputBuilder.load(TINY, card), ArithmeticEncoder())


def records_of(texts: Sequence[str]) -> dict[bytes, bytes]:
    fetched = FetchedVectors({})
    DocumentVectors(encoder(), VectorStorage(bits=ROUNDED)).with_fetched(fetched).of(texts)
    return fetched.new


def call_of(scorer: Any = None, clock: Any = time.monotonic, **options: Any) -> Reranked:
    asked = Rerank(fields="text", **options)
    service = RerankService(Settings.load(vectors="off"), scorer or encoder(), clock=clock)
    by = Reranking(service, asked, "low", Deadline.after_ms(asked.deadline_ms, clock), Fields.named_by(asked))
    call = planned(by, {"query": {"match": {"text": "low"}}}, {})
    assert isinstance(call, Reranked)
    return call


def on(*, is_embedded: bool = False) -> SideVectors:
    return SideVectors(is_embedded=is_embedded)


def hits_with(*texts: str) -> dict[str, Any]:
    found = {key.hex(): base64.b64encode(record).decode().rstrip("=") for key, record in records_of(texts).items()}
    return {"hits": {"hits": [{"_id": key, "fields": {"record": [record]}} for key, record in found.items()]}}


def read_of(steps: Any) -> SideRequest:
    """Perform the first step, and return the request that reads."""
    keys = next(steps)
    assert isinstance(keys, Scoring)
    request = steps.send(keys.run())
    assert isinstance(request, SideRequest)
    return request


def end_of(steps: Any, result: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        steps.send(result)
    return end.value.value


def test_what_is_there_is_read_and_what_is_not_is_written():
    steps = on().around(call_of(), RESPONSE)
    request = read_of(steps)
    assert (request.method, request.path) == ("POST", f"/{SIDE}/_search")
    assert request.params["request_timeout"] == 2.0
    scoring = steps.send(hits_with("low pressure"))
    answer = scoring.run()
    exists = steps.send(answer)
    assert (exists.method, exists.path) == ("HEAD", f"/{SIDE}")
    make = steps.send(False)
    assert (make.method, make.path) == ("PUT", f"/{SIDE}")
    bulk = steps.throw(RequestError(400, EXISTS, {}))  # another search was faster
    assert (bulk.method, bulk.path) == ("POST", "/_bulk")
    (new,) = records_of([HITS[0]["_source"]["text"]]).values()
    assert base64.b64encode(new).decode() in bulk.body
    assert bulk.body.count('"_id"') == 1
    assert end_of(steps, {"errors": False, "items": []}) is answer
    assert answer["rerank"]["applied"] is True
    (stage,) = answer["rerank"]["stages"]
    assert (stage["known"], stage["encoded"]) == (1, 1)


@pytest.mark.parametrize("vectors_index", [False, True])
def test_nothing_is_asked_where_nothing_is_kept_or_needed(vectors_index):
    searcher = Searcher(Settings.load(vectors_index=vectors_index), Defaults(), encoder())
    refused = Refused({}, {}, "size is 0", call_of().by)
    call = call_of() if searcher.vectors is None else refused
    steps = searcher.finished(call, RESPONSE)
    scoring = next(steps)
    end_of(steps, scoring.run())


@pytest.mark.parametrize("call", [call_of(scorer=FunctionScorer()), call_of(sentences=True)], ids=["model", "stage"])
def test_no_request_for_what_has_no_vectors(call):
    steps = on().around(call, RESPONSE)
    keys = next(steps)
    assert keys.run() == {}
    scoring = steps.send({})
    assert isinstance(scoring, Scoring)


def test_everything_known_is_not_written():
    steps = on().around(call_of(), RESPONSE)
    read_of(steps)
    texts = [hit["_source"]["text"] for hit in RESPONSE["hits"]["hits"]]
    scoring = steps.send(hits_with(*texts))
    end_of(steps, scoring.run())


def test_a_refused_reading_is_no_failure_of_the_search(caplog):
    vectors = on()
    steps = vectors.around(call_of(), RESPONSE)
    read_of(steps)
    scoring = steps.throw(ConnectionTimeout("TIMEOUT", "slow", None))
    assert end_of(steps, scoring.run())["rerank"]["applied"] is True
    assert "no read of document vectors for 10 s" in caplog.text
    again = vectors.around(call_of(), RESPONSE)
    keys = next(again)
    assert isinstance(again.send(keys.run()), Scoring)  # left alone for a while
    assert caplog.text.count("no read of document vectors") == 1


@pytest.mark.parametrize("writes", [False, True])
def test_a_short_deadline_is_no_failure_of_the_cluster(caplog, writes):
    vectors, clock = on(), ManualClock()
    call = call_of(deadline_ms=1000, clock=clock)
    steps = vectors.around(call, RESPONSE)
    assert 0 < read_of(steps).params["request_timeout"] <= 1
    answer = steps.send(hits_with()).run() if writes else None
    if writes:
        assert isinstance(steps.send(answer), SideRequest)
    clock.sleep(1.0)
    late = ConnectionTimeout("TIMEOUT", "slow", None)
    with pytest.raises(StopIteration) if writes else nullcontext():
        steps.throw(late)
    assert caplog.text == ""
    assert isinstance(read_of(vectors.around(call_of(), RESPONSE)), SideRequest)


def test_after_the_deadline_nothing_is_asked_or_written():
    clock = ManualClock()
    call = call_of(deadline_ms=40, clock=clock)
    steps = on().around(call, RESPONSE)
    read_of(steps)
    scoring = steps.send(hits_with())
    answer = scoring.run()
    clock.sleep(0.05)
    assert end_of(steps, answer) is answer
    late = next(on().around(call, RESPONSE))
    assert late.run.func == call.finish


def test_one_index_that_refuses_does_not_stop_another():
    vectors = on()
    steps = vectors.around(call_of(), RESPONSE)
    read_of(steps)
    steps.throw(RequestError(403, "security_exception", {}))
    hits = [{**hit, "_index": "another"} for hit in RESPONSE["hits"]["hits"]]
    request = read_of(vectors.around(call_of(), {**RESPONSE, "hits": {"hits": hits}}))
    assert request.path == "/another-osrerank-vectors/_search"


@pytest.mark.parametrize(
    "failure", [NotFoundError(404, "index_not_found_exception", {}), RequestError(403, "security_exception", {})]
)
def test_a_refused_writing_is_no_failure_of_the_search(failure, caplog):
    steps = on().around(call_of(), RESPONSE)
    read_of(steps)
    scoring = steps.send(hits_with())
    answer = scoring.run()
    steps.send(answer)
    with pytest.raises(StopIteration) as end:
        steps.throw(failure)
    assert end.value.value is answer
    assert "no write of document vectors" in caplog.text


def test_records_that_a_bulk_request_refuses_are_said(caplog):
    steps = on().around(call_of(), RESPONSE)
    read_of(steps)
    answer = steps.send(hits_with()).run()
    steps.send(answer)
    steps.send(True)
    items = [{"index": {"status": 429, "error": {"type": "rejected_execution_exception"}}}]
    assert end_of(steps, {"errors": True, "items": items}) is answer
    assert "rejected_execution_exception" in caplog.text


def test_many_keys_are_read_in_several_requests():
    hits = [{"_index": "i", "_id": str(n), "_score": 1.0, "_source": {"text": f"text {n}"}} for n in range(1001)]
    steps = on().around(call_of(depth=2000), {**RESPONSE, "hits": {"hits": hits}})
    sizes = [read_of(steps).body["size"]]
    while isinstance(request := steps.send(hits_with()), SideRequest):
        sizes.append(request.body["size"])
    assert sizes == [250, 250, 250, 250, 1]


def test_the_side_index_decides_how_deep_an_open_depth_goes():
    hits = [{"_index": "i", "_id": str(n), "_score": 1.0, "_source": {"text": f"text {n}"}} for n in range(130)]
    steps = on().around(call_of(depth="auto"), {**RESPONSE, "hits": {"hits": hits}})
    assert read_of(steps).body["size"] == 130
    scoring = steps.send(hits_with(*(f"text {n}" for n in range(100, 117))))
    assert scoring.run()["rerank"]["stages"][0]["candidates"] == 117
