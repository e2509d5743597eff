"""Limits of the HTTP server: load, deadlines, readiness, tokens, and cut texts."""

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from osrerank._log_throttle import LogThrottle
from osrerank.errors import EndpointError, InferenceError, ModelLoadError, Overloaded, WorkerError
from osrerank.scoring.registry import load_scorer
from osrerank.server.api import app
from osrerank.server.api.app import create_app
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer, ManualClock
from tests.rerank_server import Reply, answering, by_length, server_file
from tests.waiting import HeldScorer, wait_until
from tests.workers import TINY

BODY = {"query": "low blood", "documents": ["low", "blood", "low blood"]}
ERROR_KEYS = {"message", "detail", "error", "error_type"}


def raising(error):
    """Return a scorer whose every call fails in one way."""

    def fail(_query, _text):
        raise error

    return FunctionScorer(fail)


def check(answer, status, words, kind="Validation"):
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert set(content) == ERROR_KEYS
    assert words in content["message"]
    assert content["message"] == content["detail"] == content["error"]
    assert content["error_type"] == kind


@pytest.mark.parametrize(
    ("content", "kind", "status", "words"),
    [
        (b"{", "application/json", 400, "not JSON"),
        (b"", "application/json", 422, "the body"),
        (b"[]", "application/json", 422, "the body"),
        (b'{"documents": ["a"]}', "application/json", 422, "query"),
        (b'{"query": "a"}', "application/json", 422, "documents"),
        (b'{"query": " ", "documents": ["a"]}', "application/json", 422, "a query must not be blank"),
        (b'{"query": 5, "documents": ["a"]}', "application/json", 422, "query"),
        (b'{"query": "a", "documents": []}', "application/json", 422, "documents"),
        (b'{"query": "a", "documents": ["a", 5]}', "application/json", 422, "documents.1"),
        (b'{"query": "a", "documents": "a"}', "application/json", 422, "documents"),
        (b'{"query": "a", "documents": ["a"], "top_n": -1}', "application/json", 422, "top_n"),
        (b'{"query": "a", "documents": ["a"], "timeout_ms": NaN}', "application/json", 422, "timeout_ms"),
        (b'{"query": "a", "documents": ["a"], "timeout_ms": 0}', "application/json", 422, "timeout_ms"),
        (b'{"query": "a", "documents": [{}], "rank_fields": ["\\ud800"]}', "application/json", 422, "no text"),
        (b'{"query": "a", "documents": ["a"]}', "text/plain", 415, "application/json"),
        (b'{"query": "a", "documents": ["a"]}', "text/html", 415, "application/json"),
        (b"query=a", "application/x-www-form-urlencoded", 415, "application/json"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_malformed_rerank_requests_are_refused_with_the_field(client, path, content, kind, status, words):
    check(client.post(path, content=content, headers={"Content-Type": kind}), status, words)


def test_too_many_documents_and_too_large_bodies(serve):
    client = serve(max_documents=2)
    check(client.post("/rerank", json=BODY), 413, "has more than 2 entries")
    pairs = [{"text": "a", "text_pair": "b"}] * 3
    check(client.post("/invocations", json={"inputs": pairs}), 413, "has more than 2 entries")
    assert client.post("/rerank", json={**BODY, "documents": ["low"] * 2}).status_code == 200
    client = serve(max_body_bytes=100)
    body = {"query": "low", "documents": ["x" * 100]}
    check(client.post("/rerank", json=body), 413, "100 bytes")
    check(client.post("/rerank", content=(b"x" for _ in range(200))), 413, "100 bytes")  # no Content-Length
    assert client.post("/rerank", json={"query": "low", "documents": ["x"]}).status_code == 200


def test_a_request_to_a_full_queue_gets_retry_after(serve, monkeypatch, caplog):
    scorer = HeldScorer()
    client = serve(scorer, max_held_documents=3)
    wait_until(lambda: client.get("/ready").status_code == 200)
    monkeypatch.setattr(app, "log_throttle", LogThrottle())
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, "/rerank", json=BODY)
        assert scorer.begun.wait(30)
        answer = client.post("/rerank", json=BODY)
        ready = client.get("/ready")
        scorer.may_go_on.set()
        assert slow.result().status_code == 200
    check(answer, 429, "3 documents are waiting", "Overloaded")
    assert int(answer.headers["Retry-After"]) >= 1
    check(ready, 503, "3 documents are waiting", "Unhealthy")
    assert "[overloaded]" in caplog.text
    assert "[not-ready] the server cannot serve requests: 3 documents are waiting" in caplog.text
    assert client.post("/rerank", json=BODY).status_code == 200
    assert client.get("/ready").status_code == 200
    assert serve(max_held_documents=2).post("/rerank", json=BODY).status_code == 200  # alone a large one is taken


def slow():
    """Return a scorer that takes 200 ms a pair, and the clock that it moves."""
    clock = ManualClock()
    return FunctionScorer(seconds_per_pair=0.2, sleep=clock.sleep), clock


@pytest.mark.parametrize(
    ("more", "headers", "limits"),
    [
        ({"timeout_ms": 100}, {}, {}),
        ({}, {"X-Request-Timeout-Ms": "100"}, {}),
        ({"timeout_ms": 9e6}, {"X-Request-Timeout-Ms": "100"}, {}),
        ({"timeout_ms": 60_000}, {}, {"timeout_ms": 100}),  # the server's is the most
    ],
)
def test_deadlines_of_requests_are_enforced(serve, more, headers, limits):
    client = serve(*slow(), **limits)
    check(client.post("/rerank", json={**BODY, **more}, headers=headers), 504, "time limit passed", "Timeout")
    assert serve(*slow()).post("/rerank", json={**BODY, "timeout_ms": 60_000}).status_code == 200


def test_a_request_leaves_the_queue_at_its_deadline(serve):
    scorer = HeldScorer()
    client = serve(scorer, ManualClock(), threads=1)  # the clock stands still, so no wait is expected
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/rerank", json=BODY)
        assert scorer.begun.wait(30)
        check(client.post("/rerank", json={**BODY, "timeout_ms": 50}), 504, "time limit passed", "Timeout")
        assert "osrerank_http_held_documents 3.0" in client.get("/metrics").text  # the first request's
        scorer.may_go_on.set()
        assert first.result().status_code == 200
    assert "osrerank_http_held_documents 0.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ModelLoadError("there is no model at X"), 503, "Unhealthy"),
        (WorkerError("no worker answers"), 503, "Unhealthy"),
        (EndpointError("the rerank server cannot be reached"), 503, "Unhealthy"),
        (RuntimeError("secret"), 500, "Backend"),
        (InferenceError("broken on purpose"), 500, "Backend"),
    ],
)
def test_failures_of_the_model_have_their_status(serve, error, status, kind, caplog):
    client = serve(raising(error))
    words = "internal error" if isinstance(error, RuntimeError) else str(error)
    check(client.post("/rerank", json=BODY), status, words, kind)
    assert client.get("/health").status_code == 200
    assert ("[server-defect]" if isinstance(error, RuntimeError) else "[request-failed]") in caplog.text
    assert "secret" not in caplog.text


def test_readiness_scores_nothing(serve):
    client = serve(raising(InferenceError("scored")))
    wait_until(lambda: client.get("/ready").json() == {"status": "ready", "model": "osrerank/e5-small"})
    assert client.get("/live").json() == {"status": "ok"}


def test_readiness_without_a_model(tmp_path):
    reranker = RerankService(Settings.load(model=str(tmp_path)))
    with TestClient(create_app(reranker)) as client:
        wait_until(lambda: "is being loaded" not in client.get("/ready").text)
        check(client.get("/ready"), 503, str(tmp_path), "Unhealthy")
    reranker.close()


def closing(received):
    """Answer as a server whose connections end with it."""
    return (Reply({}) if received.method == "GET" else by_length(received))._replace(headers=(("Connection", "close"),))


def test_readiness_follows_the_scoring_server_behind(tmp_path):
    replies = []
    with answering(lambda it: replies[-1] if replies else closing(it)) as behind:
        file = server_file(tmp_path, behind.url, dialect="tei")
        reranker = RerankService(Settings.load(backend="http", settings_file=file))
        with TestClient(create_app(reranker)) as client:
            wait_until(lambda: client.get("/ready").status_code == 200)
            replies.append(Reply({"error": "full"}, 503, (("Connection", "close"),)))
            check(client.get("/ready"), 503, "answered 503: full", "Unhealthy")
            replies.clear()
            assert client.get("/ready").status_code == 200
            behind.shutdown()
            behind.server_close()
            check(client.get("/ready"), 503, "127.0.0.1", "Unhealthy")
        reranker.close()


def after(error, seconds):
    error.retry_after_s = seconds
    return error


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("full"), 429), (EndpointError("loading", status=503), 503)], ids=["429", "503"]
)
def test_retry_after_of_the_server_behind_is_passed_on(serve, error, status):
    answer = serve(raising(after(error, 20.5))).post("/rerank", json=BODY)
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, "21")


def test_a_late_answer_counts_all_documents_of_its_request(serve):
    body = {"query": "low", "documents": ["x" * 8_000] * 30, "timeout_ms": 150}
    check(serve(*slow()).post("/rerank", json=body), 504, "of 30 documents", "Timeout")


@pytest.mark.long
@pytest.mark.parametrize("asked", [{"truncate": False}, {"truncation": False}, {"truncate": "NONE"}])
def test_texts_that_must_not_be_cut_are_refused_if_they_are_too_long(serve, asked):
    client = serve(load_scorer(TINY, backend="onnx"))
    for path, texts in (("/rerank", "texts"), ("/v1/rerank", "documents"), ("/voyage/v1/rerank", "documents")):
        body = {"query": "cat", texts: ["a cat", "cat " * 2_000]}
        assert client.post(path, json=body).status_code == 200
        for _ in range(2):  # whether or not the scores are cached
            check(client.post(path, json={**body, **asked}), 422, "longer than the model's input")
        assert client.post(path, json={**body, **asked, texts: ["a cat", "a dog"]}).status_code == 200


def test_a_proxy_of_another_server_refuses_to_promise_uncut_texts(tmp_path):
    file = server_file(tmp_path, "http://127.0.0.1:9", dialect="tei")
    reranker = RerankService(Settings.load(backend="http", settings_file=file))
    with TestClient(create_app(reranker)) as client:
        check(client.post("/rerank", json={**BODY, "truncate": False}), 422, "leave truncate out")
    reranker.close()


@pytest.mark.parametrize("raw", [False, True])
def test_documents_that_fail_or_are_blank_come_last_and_are_counted(serve, raw):
    client = serve(FunctionScorer(lambda _query, text: -50.0 - len(text), unscorable=frozenset({"x"})))
    answer = client.post("/rerank", json={"query": "q", "texts": ["x", "aa", "...", "a", ""], "raw_scores": raw})
    assert answer.headers["X-Rerank-Unscored"] == "3"
    assert [item["index"] for item in answer.json()] == [3, 1, 0, 2, 4]
    scores = [item["score"] for item in answer.json()]
    assert scores[0] > scores[1] > scores[2] == scores[3] == scores[4]
    answer = client.post("/rerank", json={"query": "q", "texts": ["...", " "]})
    assert (answer.status_code, [item["index"] for item in answer.json()]) == (200, [0, 1])
    assert "X-Rerank-Unscored" not in client.post("/rerank", json={"query": "q", "texts": ["a"]}).headers


@pytest.mark.parametrize("path", ["/rerank", "/v1/models", "/info", "/metrics"])
def test_scoring_needs_the_token(serve, path):
    client = serve(token="s3cret")
    method = "POST" if path == "/rerank" else "GET"
    for header, words in ((None, "needs a token"), ("Bearer wrong", "is wrong"), ("Basic s3cret", "is wrong")):
        answer = client.request(method, path, json=BODY, headers={"Authorization": header} if header else {})
        check(answer, 401, words, "Authentication")
        assert "Authorization: Bearer TOKEN" in answer.json()["message"]
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    for header in ("Bearer s3cret", "BEARER s3cret", "s3cret"):  # the last is how Mixedbread's first SDK sends it
        assert client.request(method, path, json=BODY, headers={"Authorization": header}).status_code == 200
    wait_until(lambda: client.get("/ready").status_code == 200)
    for free in ("/health", "/ping", "/.well-known/ready", "/openapi.json", "/docs"):
        assert client.get(free).status_code == 200, free


def test_readiness_of_an_index_needs_the_token_whether_there_is_one_or_not(serve):
    client = serve(token="s3cret")
    wait_until(lambda: client.get("/ready").status_code == 200)
    for parameters in ({"index": "notes"}, {"index": "other", "at_least": 0.5}, {"anything": 1}):
        check(client.get("/ready", params=parameters), 401, "Authorization: Bearer TOKEN", "Authentication")
    response = client.get("/ready", params={"index": "notes"}, headers={"Authorization": "Bearer s3cret"})
    check(response, 400, "this server reads no indices")


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics"])
def test_head_requests_are_answered_like_get_without_a_body(serve, path):
    client = serve()
    wait_until(lambda: client.get("/ready").status_code == 200)
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Type"] == client.get(path).headers["Content-Type"]
    assert client.head("/v1/rerank").status_code == 405


def test_models_info_and_metrics_are_answered(client):
    client.post("/v2/rerank", json=BODY)
    assert client.get("/v1/models").json()["data"][0]["id"] == "osrerank/e5-small"
    assert client.get("/info").json()["max_client_batch_size"] == 10_000
    metrics = client.get("/metrics").text
    assert 'osrerank_http_requests_total{route="/v2/rerank",status="200"}' in metrics
    assert 'osrerank_http_documents_total{score="inferred"}' in metrics
    assert client.get("/meta").json() == client.get("/info").json()
    check(client.get("/v1/rerank"), 405, "use POST")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("//v1/rerank", "did you mean /v1/rerank?"),
        ("/v1/v1/rerank", "did you mean /v1/rerank?"),
        ("/v1/v2/rerank", "did you mean /v2/rerank?"),
        ("/v1/v1/reranking", "did you mean /v1/reranking?"),
        ("//voyage/v1/v1/rerank", "did you mean /voyage/v1/rerank?"),
        ("/nowhere", "the routes are POST /"),
        (f"/{'/x' * 10_000}", "GET /ready"),
    ],
)
def test_an_unknown_path_is_answered_with_the_known_routes(client, path, words):
    check(client.post(f"http://testserver{path}", json=BODY), 404, words)


def test_documents_for_a_path_with_a_slash_at_its_end_are_ranked_without_a_redirect(client):
    for path in ("/v1/rerank/", "/v1/rerank//"):
        answer = client.post(path, json=BODY, follow_redirects=False)
        assert answer.status_code == 200, answer.text


def test_a_page_whose_path_has_a_slash_at_its_end_is_redirected_so_that_its_relative_links_work(client):
    answer = client.get("/docs/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "http://testserver/docs")


def test_a_body_without_a_content_type_is_json(client):
    for path in ("/v1/rerank", "/voyage/v1/rerank", "/rerank"):
        answer = client.post(path, content=json.dumps(BODY))
        assert ("content-type" in answer.request.headers, answer.status_code) == (False, 200), answer.text


def test_answers_are_sent_without_delay():
    """Without the option the kernel holds an answer's last piece back until the client confirms the one before."""
    from osrerank.server.run import bind, listen

    with (
        bind("127.0.0.1", 0) as listener,
        contextlib.nullcontext(listen(listener)),
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_cut_documents_are_counted(serve):
    scorer = load_scorer(TINY, backend="onnx", threads=1)
    client = serve(scorer)
    texts = ["blood " * 900, "blood", "salt " * 900]
    assert client.post("/rerank", json={"query": "q", "texts": texts}).headers["X-Rerank-Truncated"] == "2"
    assert "X-Rerank-Truncated" not in client.post("/rerank", json={"query": "q", "texts": ["a"]}).headers
