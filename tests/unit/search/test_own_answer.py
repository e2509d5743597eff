"""Where the deeper first pass is refused or incomplete, the caller has its own answer, marked."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opensearchpy import ConnectionTimeout, NotFoundError, RequestError, TransportError

from osrerank._log_throttle import LogThrottle
from osrerank.aio import connect_async
from osrerank.testing import CannedTransport
from tests.rankings import BY_LENGTH, client_for, ids, response_of

TEXTS = [f"blood {'x' * place}" for place in range(60)]
BODY = {"query": {"match": {"text": "blood"}}, "size": 3}
OTHER = {"query": {"match": {"text": "pressure"}}, "size": 3}


def answer_to(size: int, **extra: Any) -> dict[str, Any]:
    """An index of sixty hits."""
    return {**response_of(TEXTS[:size], **extra), "hits": {**response_of(TEXTS[:size])["hits"], "total": {"value": 60}}}


class Engine(CannedTransport):
    """Answers a first pass, of more than three hits, as told; other searches, and all for `OTHER`, as it should."""

    deep: Any = None

    def perform_request(self, method: str, url: str, params: Any = None, body: Any = None, **options: Any) -> Any:
        if url == "/" or url.endswith("/_mapping") or "/_settings/" in url:
            return super().perform_request(method, url, params, body, **options)
        self.requests.append({"url": url, "params": params, "body": body})
        if url.endswith("_msearch"):
            lines = body if isinstance(body, list) else map(self.serializer.loads, body.strip().split("\n"))
            return {"took": 1, "responses": [self.item(line) for line in [*lines][1::2]]}
        response = self.answered(body)
        if isinstance(response, Exception):
            raise response
        return response

    def item(self, body: Any) -> Any:
        response, error = self.answered(body), {"type": "refused", "reason": "too deep"}
        return {"error": error, "status": 400} if isinstance(response, Exception) else response

    def answered(self, body: Any) -> Any:
        size = body.get("size", 10)
        is_own = size <= 3 or body["query"] == OTHER["query"]
        return answer_to(size) if is_own or self.deep is None else self.deep


class AsyncEngine(Engine):
    async def perform_request(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        return super().perform_request(*arguments, **options)


FAILED = {"total": 2, "successful": 1, "failed": 1, "failures": [{"reason": {"type": "script", "reason": "no value"}}]}
LOSSES: dict[str, tuple[Any, str]] = {
    "400": (RequestError(400, "too deep", {}), "was refused (RequestError(400, 'too deep'"),
    "429": (TransportError(429, "circuit_breaking_exception", {}), "was refused (TransportError(429"),
    "no answer": (ConnectionTimeout("TIMEOUT", "read timed out", {}), "was refused (ConnectionTimeout"),
    "shards": (answer_to(50, _shards=FAILED), "was incomplete (1 of 2 shards failed (script: no value))"),
    "timed out": (answer_to(20, timed_out=True), "was incomplete (it timed out)"),
    "ended early": (answer_to(20, terminated_early=True), "was incomplete (it was terminated early)"),
    "too few": (answer_to(2), "was incomplete (it found 2 of 60 hits)"),
}


def searched(deep: Any) -> Any:
    client = client_for(None, transport_class=Engine)
    client.transport.deep = deep
    return client.search(index="i", body=BODY, rerank=True)


def in_asyncio(deep: Any) -> Any:
    client = connect_async("http://localhost:9", scorer=BY_LENGTH, transport_class=AsyncEngine)
    client.transport.deep = deep
    return asyncio.run(client.search(index="i", body=BODY, rerank=True))


def in_a_multi_search(deep: Any) -> Any:
    client = client_for(None, transport_class=Engine)
    client.transport.deep = deep
    body = [{"index": "i"}, BODY, {}, {**BODY, "size": 0}, {}, OTHER]
    answer = client.msearch(body=body, rerank=True)["responses"]
    assert answer[1]["rerank"]["reason"] == "size is 0: no hits were asked for"
    assert (answer[2]["rerank"]["applied"], ids(answer[2])) == (True, ["d59", "d58", "d57"])
    return answer[0]


@pytest.mark.parametrize("search", [searched, in_asyncio, in_a_multi_search])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_refused_deeper_first_pass_returns_the_callers_own_answer(search: Callable[[Any], Any], loss: str) -> None:
    deep, expected_reason = LOSSES[loss]
    response = search(deep)
    assert ids(response) == ["d0", "d1", "d2"]
    assert (response["rerank"]["applied"], response["_shards"]["failed"]) == (False, 0)
    if search is in_a_multi_search and isinstance(deep, Exception):
        expected_reason = "was refused (refused: too deep)"
    assert expected_reason in response["rerank"]["reason"]


def test_a_shard_that_fails_in_the_own_request_too_stops_no_reranking() -> None:
    client = client_for(answer_to(60, _shards=FAILED))
    response = client.search(index="i", body=BODY, rerank=True)
    assert (response["rerank"]["applied"], response["hits"]["hits"][0]["_id"]) == (True, "d59")
    assert len(client.transport.requests) == 2


def test_terminate_after_of_the_caller_needs_no_second_request() -> None:
    client = client_for(answer_to(60, terminated_early=True))
    assert client.search(index="i", body={**BODY, "terminate_after": 60}, rerank=True)["rerank"]["applied"] is True
    assert len(client.transport.requests) == 1


SAME_FOR_ALL = [
    NotFoundError(404, "no such index", {}),
    TransportError(401, "who", {}),
    TransportError(503, "unavailable", {}),
    TransportError(429, "rejected_execution_exception", {}),
]


@pytest.mark.parametrize("error", SAME_FOR_ALL)
def test_an_error_that_every_search_would_get_is_requested_once(error: TransportError) -> None:
    client = client_for(None, transport_class=Engine)
    client.transport.deep = error
    with pytest.raises(type(error)):
        client.search(index="i", body=BODY, rerank=True)
    assert len(client.transport.requests) == 1


def test_the_log_has_no_message_about_a_query_that_is_refused_in_the_callers_own_request_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osrerank.search.perform.log_throttle", LogThrottle())
    refusal = RequestError(400, "search_phase_execution_exception", {"error": 'For input string: "my illness"'})
    assert "illness" in str(refusal)
    client = client_for(refusal)
    with pytest.raises(RequestError):
        client.search(index="i", body=BODY, rerank=True)
    assert "illness" not in caplog.text
    searched(LOSSES["400"][0])
    assert "[first-pass-refused] a search is not reranked: the first pass for reranking was refused" in caplog.text
