"""Where an engine does not tell the boosts of a query, a search is reranked without them, and says so."""

import logging
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import RequestError

from osrerank import connect
from osrerank.testing import CannedTransport, FunctionScorer, overlap
from tests.rankings import client_for, ids, response_of

BODY = {"query": {"function_score": {"query": {"match": {"text": "blood"}}, "weight": 2}}}
TEXTS = ["a blood", "b blood pressure", "c"]


class OldEngine(CannedTransport):
    """Refuses the parameter by which a search asks for the scores of named queries."""

    def perform_request(self, method: str, url: str, params: Any = None, body: Any = None, **options: Any) -> Any:
        if "include_named_queries_score" in (params or {}):
            self.requests.append({"url": url, "params": params, "body": body})
            raise RequestError(400, "illegal_argument_exception", "unrecognized parameter")
        return super().perform_request(method, url, params, body, **options)


def test_an_engine_that_refuses_named_clauses_is_searched_without_names() -> None:
    client = client_for(response_of(TEXTS), FunctionScorer(overlap), transport_class=OldEngine)
    searches = [client.search(body=BODY, index="i", rerank=True) for _ in range(2)]
    for response in searches:
        stage = response["rerank"]["stages"][-1]
        assert response["rerank"]["applied"] is True
        assert (stage["name"], stage["applied"], stage["reason_code"]) == ("boosts", False, "boosts")
    assert ids(searches[0]) == ids(searches[1])
    naming_requests = [request for request in client.transport.requests if "include" in str(request["params"])]
    assert len(naming_requests) == 1


def test_the_embedded_engine_reranks_without_boosts_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(f"embedded:{tmp_path}", scorer=FunctionScorer(overlap)) as client:
        client.index(index="i", id="1", body={"text": "blood pressure", "shop": "a"}, refresh=True)
        query = {"bool": {"must": [{"match": {"text": "blood"}}], "should": [{"term": {"shop": "a"}}]}}
        with caplog.at_level(logging.INFO, "osrerank.search"):
            answer = client.search(body={"query": query}, index="i", rerank=True)
    assert answer["rerank"]["applied"] is True
    assert "embedded engine" in answer["rerank"]["stages"][-1]["reason"]
    assert "reranked without its boosts" in caplog.text
