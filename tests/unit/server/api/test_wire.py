"""The HTTP server on the wire: slow and large bodies, clients that leave, and reused connections."""

import contextlib
import http.client
import json
import socket
import urllib.request

import pytest

from osrerank.server.api.limits import ServerLimits
from osrerank.testing import FunctionScorer
from tests.http_server import running
from tests.waiting import HeldScorer, wait_until

pytestmark = pytest.mark.long


def port_of(url):
    return int(url.rpartition(":")[2])


def request(body, length=None):
    head = "POST /v1/rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    return head.format(length or len(body)).encode() + body


def question(count=3, size=3):
    return json.dumps({"query": "low", "documents": ["x" * size] * count}).encode()


@contextlib.contextmanager
def connected(url):
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=30) as connection:
        yield connection


def status(connection):
    return int(connection.recv(12).split()[1])


def metric(url, line):
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        rows = [row for row in answer.read().decode().splitlines() if row.startswith(line)]
    return float(rows[0].rpartition(" ")[2]) if rows else 0.0


def test_a_body_that_arrives_too_slowly_is_refused():
    with running(FunctionScorer(), limits=ServerLimits(body_timeout_s=0.3)) as url, connected(url) as connection:
        connection.sendall(request(b'{"query"', length=100))
        assert status(connection) == 408


@pytest.mark.parametrize("named", [True, False], ids=["length", "chunked"])
def test_a_client_that_sends_an_oversized_body_gets_the_refusal(named):
    body = b"x" * 5_000_000
    content = request(body)
    if not named:
        head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        content = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with running(FunctionScorer(), limits=ServerLimits(max_body_bytes=1_000)) as url, connected(url) as connection:
        connection.sendall(content)
        assert status(connection) == 413


def test_the_bodies_of_all_requests_together_are_bounded():
    scorer = HeldScorer()
    with (
        running(scorer, limits=ServerLimits(max_held_bytes=1_500)) as url,
        connected(url) as first,
        connected(url) as second,
    ):
        first.sendall(request(question(size=300)))
        wait_until(lambda: metric(url, "osrerank_http_held_documents") == 3)
        second.sendall(request(question(size=300)))
        assert status(second) == 429
        scorer.may_go_on.set()
        assert status(first) == 200
        with connected(url) as third:
            third.sendall(request(question(size=300)))
            assert status(third) == 200


def test_requests_of_disconnected_clients_are_not_scored():
    count_of_499 = 'osrerank_http_requests_total{route="/v1/rerank",status="499"}'
    scorer = HeldScorer()
    limits = ServerLimits(threads=1, timeout_ms=600_000)  # however long the fifty are expected to wait, they are taken
    with running(scorer, limits=limits) as url:
        before = metric(url, count_of_499)
        with connected(url) as first:
            first.sendall(request(question(count=5)))
            wait_until(lambda: metric(url, "osrerank_http_held_documents") == 5)
            with connected(url) as second:
                second.sendall(request(question(count=50)))
                wait_until(lambda: metric(url, "osrerank_http_held_documents") == 55)
            wait_until(lambda: metric(url, count_of_499) == before + 1)
            assert metric(url, "osrerank_http_held_documents") == 5  # the fifty wait no longer
            scorer.may_go_on.set()
            assert status(first) == 200


def test_a_connection_is_reused_for_the_next_request():
    with running(FunctionScorer()) as url:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(url), timeout=30)
        with contextlib.closing(connection):
            connection.connect()
            first_socket = connection.sock
            for body in (question(), b"{", question(count=1)):
                connection.request("POST", "/v1/rerank", body, {"Content-Type": "application/json"})
                connection.getresponse().read()
            assert connection.sock is first_socket
