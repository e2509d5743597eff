"""Retries, waiting, deadlines, and secrets that no message, log line or representation has."""

import logging
import socket
import time

import pytest
import urllib3
from prometheus_client import REGISTRY
from urllib3.exceptions import ReadTimeoutError

from osrerank._log_throttle import LogThrottle
from osrerank.errors import DeadlineExceeded, EndpointError, InferenceError, Overloaded
from osrerank.pipeline import with_failure
from osrerank.scoring.backends.http.connection import RETRY_BUDGET_S, Connection
from osrerank.scoring.backends.http.refusal import parse_retry_after
from osrerank.types import NEVER, Deadline
from tests.rankings import ranking_of
from tests.rerank_server import Reply, answering, by_length
from tests.servers import free_port

KEY = "k3y-that-nobody-may-see"


def then(*replies):
    """Answer with the replies in turn, then as by_length does."""
    remaining = list(replies)
    return lambda received: remaining.pop(0) if remaining else by_length(received)


def refused(status, *headers, content=None):
    return Reply({"error": "busy"} if content is None else content, status, headers)


def retries():
    return REGISTRY.get_sample_value("osrerank_endpoint_requests_total", {"outcome": "retried"}) or 0.0


def score(scorer, texts=("four",), deadline=NEVER):
    return scorer.score("q", texts, [(index,) for index in range(len(texts))], deadline=deadline)


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_request_is_retried_if_the_rerank_server_is_busy(scorer_of, no_waiting, status):
    before = retries()
    with answering(then(refused(status), refused(status), Reply())) as server:
        assert score(scorer_of(server.url)).values.tolist() == [4.0]
    assert len(server.received) == 4
    assert retries() == before + 3


@pytest.mark.parametrize(("status", "kind"), [(429, Overloaded), (502, EndpointError), (503, EndpointError)])
def test_a_search_asks_a_rerank_server_at_most_four_times(scorer_of, no_waiting, status, kind):
    with answering(lambda _received: refused(status)) as server, pytest.raises(kind, match=f"answered {status}: busy"):
        score(scorer_of(server.url))
    assert len(server.received) == 4


def test_no_retry_waits_beyond_the_deadline(scorer_of):
    with answering(lambda _received: refused(429, ("Retry-After", "25"))) as server:
        began = time.monotonic()
        with pytest.raises(Overloaded, match="429: busy; the next attempt would come too late, in 25") as caught:
            score(scorer_of(server.url), deadline=Deadline.after_ms(20_000))
        assert time.monotonic() - began < 15
    assert caught.value.retry_after_s == 25
    assert len(server.received) == 1
    with answering(lambda _received: refused(503, ("Retry-After", "3600"))) as server, pytest.raises(EndpointError):
        score(scorer_of(server.url))  # without a deadline there is a longest wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 10.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "²"}, None),
        ({"Retry-After": "9" * 400}, 86_400.0),
        ({"Retry-After": "Wed, 21 Oct 9999 07:28:10 GMT"}, 86_400.0),
        ({}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(headers, seconds):
    assert parse_retry_after(headers) == seconds


@pytest.mark.parametrize("status", [500, 501, 504, 404, 401, 302])
def test_a_refusal_other_than_busy_is_not_retried(scorer_of, status):
    answer = refused(status, ("Location", "http://127.0.0.1:9/"))
    expected = pytest.raises(EndpointError, match=rf"the rerank server 127\.0\.0\.1:\d+ answered {status}")
    with answering(lambda _received: answer) as server, expected as caught:
        score(scorer_of(server.url))
    assert caught.value.status == status
    assert len(server.received) == 1


def test_a_broken_connection_is_replaced(scorer_of, no_waiting):
    with answering(then(Reply(None), Reply(None))) as server:
        assert score(scorer_of(server.url)).values.tolist() == [4.0]
    with pytest.raises(EndpointError, match="cannot be reached"):  # it has ended
        score(scorer_of(server.url))


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b'{"a"', b"\xff\xfe", b"[" * 100_000, b"null"],
    ids=["nothing", "html", "cut off", "no text", "deep", "null"],
)
def test_an_answer_that_is_not_json_is_an_error(scorer_of, body):
    with answering(lambda _received: Reply(body)) as server, pytest.raises(EndpointError, match="response"):
        score(scorer_of(server.url))


def test_a_rerank_server_that_never_answers_times_out(scorer_of):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scorer = scorer_of(f"http://127.0.0.1:{listener.getsockname()[1]}")
        began = time.monotonic()
        scores = score(scorer, ("a", "b"), Deadline.after_ms(200))
        assert time.monotonic() - began < 1.5
    assert (scores.reached, scores.failures, scores.attempted) == (0, {}, [])
    scorer.close()
    with pytest.raises(InferenceError, match="is closed"):
        score(scorer)


def test_without_a_deadline_a_rerank_server_has_a_minute_to_answer(scorer_of, monkeypatch):
    def late(pool, _method, url, *, timeout, **_options):
        assert (timeout.connect_timeout, timeout.read_timeout) == (3, 60)
        raise ReadTimeoutError(pool, url, "")

    monkeypatch.setattr(urllib3.PoolManager, "request", late)
    with pytest.raises(EndpointError, match="did not respond in time"):
        score(scorer_of("http://127.0.0.1:9"))


def test_proxies_of_the_environment_are_ignored(scorer_of, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with answering(by_length) as server:
        assert score(scorer_of(server.url)).values.tolist() == [4.0]


def test_the_remaining_time_is_sent_only_to_an_osrerank_server(scorer_of):
    with answering(by_length) as server:
        for dialect in ("osrerank", "tei"):
            score(scorer_of(server.url, dialect), deadline=Deadline.after_ms(5000))
    remaining_ms = [received.headers.get("x-request-timeout-ms") for received in server.received]
    assert 0 < int(remaining_ms[0]) <= 5000
    assert remaining_ms[1] is None


def test_the_servers_key_is_in_no_message_log_line_or_representation(scorer_of, caplog, no_waiting):
    caplog.set_level(logging.DEBUG)
    replies = [
        refused(status, content={"message": f"no such key {KEY}, said {KEY}"}) for status in (401, 429, 503, 422)
    ]
    texts_of_errors = []
    for reply in (*replies, Reply(None), Reply([])):
        with answering(lambda _received, reply=reply: reply) as server:
            scorer = scorer_of(server.url, rerank_key=KEY)
            try:
                texts_of_errors.append(score(scorer).failures)
            except (EndpointError, Overloaded) as error:
                texts_of_errors += [error, repr(error), error.__dict__, error.__cause__, error.__context__]
            texts_of_errors += [scorer, vars(scorer).keys(), scorer.model, scorer.identity]
    assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert "no such key ***, said ***; set OSRERANK_RERANK_KEY to a key that the server accepts" in str(texts_of_errors)
    assert KEY not in str(texts_of_errors)
    assert KEY not in caplog.text


def test_words_of_the_server_which_may_quote_a_query_are_in_errors_but_not_in_logs(
    scorer_of, caplog, no_waiting, monkeypatch
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("osrerank.pipeline.log_throttle", LogThrottle(1e-6))
    content = {"message": "cannot read my illness"}
    for reply in (refused(422, content=content), refused(500, content=content), Reply(content)):
        with answering(lambda _received, reply=reply: reply) as server, pytest.raises(EndpointError) as caught:
            score(scorer_of(server.url))
        assert "cannot read my illness" in str(caught.value)
        assert with_failure(ranking_of(["four"]), "mono", caught.value).reports[0].reason == str(caught.value)
    assert caplog.text.count("[stage-skipped]") == 3
    assert "illness" not in caplog.text


def test_a_search_is_not_told_what_a_server_said_about_another_one(scorer_of):
    reply = refused(503, ("Retry-After", "20"), content={"message": "cannot read my illness"})
    with answering(lambda _received: reply) as server:
        scorer = scorer_of(server.url)
        with pytest.raises(EndpointError, match="cannot read my illness"):
            score(scorer)
        with pytest.raises(EndpointError, match=r"answered 503; retry in"):
            scorer.check_server()


def test_a_key_sent_over_plain_http_is_warned_of(scorer_of, caplog):
    for url in ("http://127.0.0.1:9", "http://localhost:9", "https://rerank.example"):
        scorer_of(url, rerank_key=KEY)
    assert caplog.text == ""
    scorer_of("http://rerank.example", rerank_key=KEY)
    assert "OSRERANK_RERANK_KEY is sent to rerank.example unencrypted; use https" in caplog.text


def test_the_servers_message_is_cut_and_echoed_texts_are_left_out(scorer_of):
    detail = {"type": "string_type", "loc": ["body"], "msg": "Input should be x" * 50, "input": "a secret text"}
    reply = Reply({"detail": [detail]}, 422)
    with answering(lambda _received: reply) as server, pytest.raises(EndpointError) as caught:
        score(scorer_of(server.url), ("a secret text",))
    assert "Input should be x" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_no_request_is_sent_after_the_deadline(scorer_of):
    with answering(by_length) as server:
        scorer = scorer_of(server.url)
        assert score(scorer, deadline=Deadline.after_ms(-1)).reached == 0
        with pytest.raises(DeadlineExceeded):
            score(scorer_of(server.url, "auto"), deadline=Deadline.after_ms(-1))
    assert server.received == []


class Patient:
    """A connection of a batch, on a clock that waiting moves."""

    def __init__(self):
        self.now_s = 0.0
        self.connection = Connection("the host", "", clock=lambda: self.now_s, wait=self.wait)
        self.connection.retry_budget_s = RETRY_BUDGET_S

    def wait(self, seconds):
        self.now_s += seconds

    def post(self, url, deadline=NEVER):
        return self.connection.post(url, {"texts": ["four"]}, deadline).content


@pytest.mark.parametrize("status", [429, 502, 503])
@pytest.mark.parametrize("headers", [(), (("Retry-After", "1"),), (("Retry-After", "60"),)])
def test_a_batch_waits_through_a_minute_of_a_busy_server(status, headers):
    patient = Patient()
    with answering(lambda received: refused(status, *headers) if patient.now_s < 60 else by_length(received)) as server:
        assert patient.post(server.url) == [{"index": 0, "score": 4.0}]
    assert 60 <= patient.now_s < 125


def test_a_batch_waits_for_a_restarting_server_but_not_for_one_that_never_answered():
    patient = Patient()
    with answering(lambda received: by_length(received)._replace(headers=(("Connection", "close"),))) as server:
        patient.post(server.url)
    with pytest.raises(EndpointError, match="cannot be reached"):
        patient.post(server.url)
    assert RETRY_BUDGET_S - 20 < patient.now_s < RETRY_BUDGET_S + 20
    waited_s = patient.now_s
    with pytest.raises(EndpointError):
        patient.post(server.url)
    assert patient.now_s < waited_s + 20  # it was waited for long enough
    never_there = Patient()
    with pytest.raises(EndpointError, match="cannot be reached"):
        never_there.post(f"http://127.0.0.1:{free_port()}")
    assert never_there.now_s < 2


def test_a_server_that_exceeds_the_sent_deadline_is_late_and_has_not_failed(scorer_of):
    with answering(lambda _received: refused(504)) as server:
        assert score(scorer_of(server.url, "osrerank"), deadline=Deadline.after_ms(5_000)).reached == 0


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        ({"error": "input exceeds the batch size", "error_type": "Validation"}, "input exceeds the batch size"),
        ({"message": "quota used up"}, "quota used up"),
        ({"error": {"message": "quota used up", "code": 429}}, "quota used up"),
    ],
)
def test_an_error_with_status_200_has_the_servers_message(answered, message):
    with answering(lambda _received: Reply(answered)) as server:
        connection = Connection("there", "")
        with pytest.raises(EndpointError, match=f"sent status 200 with an error: {message}") as caught:
            connection.post(server.url, {}, NEVER)
        connection.close()
    assert caught.value.status == 200
