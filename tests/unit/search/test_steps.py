"""The steps of a search, performed by hand."""

from typing import Any

import pytest
from opensearchpy import RequestError, TransportError

from osrerank.options.rerank import Rerank
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.requests import SideRequest
from osrerank.search.calibrated import Calibrations
from osrerank.search.states import SideStates
from osrerank.search.step import Scoring, SearchRequest
from osrerank.search.steps import search_steps
from osrerank.search.ubi import UbiRecords
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

HITS = [
    {"_index": "i", "_id": "long", "_score": 2.0, "_source": {"text": "a long text about the wing of an aeroplane"}},
    {"_index": "i", "_id": "short", "_score": 1.0, "_source": {"text": "low pressure"}},
]
RESPONSE = {"took": 1, "timed_out": False, "_shards": {}, "hits": {"total": {"value": 2}, "hits": HITS}}


def steps_of(rerank: Any, query: Any = "low pressure") -> Any:
    reranker = RerankService(Settings.load(), FunctionScorer())
    named = Rerank(query_fields="text")
    states = SideStates(is_on=False, is_embedded=False)
    arguments = {"index": "i", "rerank": rerank, "found": FoundFields(), "states": states}
    arguments["calibrations"] = Calibrations(reranker.settings)
    arguments["records"] = UbiRecords(is_embedded=False)
    return search_steps(reranker, named, query, None, {"size": 2}, **arguments)


def end_of(steps: Any, result: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        steps.send(result)
    return end.value.value


def test_a_search_sends_one_request_and_scores_its_response():
    steps = steps_of(True)
    request = next(steps)
    assert isinstance(request, SearchRequest)
    assert request.call.body["size"] == Rerank().depth
    scoring = steps.send(RESPONSE)
    assert isinstance(scoring, Scoring)
    response = end_of(steps, scoring.run())
    assert [hit["_id"] for hit in response["hits"]["hits"]] == ["short", "long"]
    assert response["rerank"]["applied"] is True


def test_without_reranking_the_response_is_the_one_that_came():
    steps = steps_of(False)
    assert next(steps).call.params == {"size": 2}
    assert end_of(steps, steps.send(RESPONSE).run()) is RESPONSE


def test_the_own_request_follows_one_that_was_refused():
    steps = steps_of(True)
    first = next(steps)
    second = steps.throw(RequestError(400, "parsing_exception", {}))
    assert first.call.body["size"] == Rerank().depth
    assert "size" not in second.call.body
    response = end_of(steps, steps.send(RESPONSE).run())
    assert response["rerank"]["applied"] is False
    assert "the first pass for reranking was refused" in response["rerank"]["reason"]


@pytest.mark.parametrize("rerank", [True, False])
def test_other_errors_pass_through(rerank: bool):
    steps, error = steps_of(rerank), TransportError(503, "unavailable")
    next(steps)
    with pytest.raises(TransportError) as raised:
        steps.throw(error)
    assert raised.value is error


def test_feedback_is_asked_for_before_the_search():
    steps = steps_of({"rm3": True})
    first = next(steps)
    assert isinstance(first, SideRequest)
    assert first.path == "/i/_search"
    request = steps.send({"hits": {"hits": []}})  # a text without hits is not expanded
    assert isinstance(request, SearchRequest)
    assert "rerank" in end_of(steps, steps.send(RESPONSE).run())
