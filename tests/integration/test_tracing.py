"""One trace over three processes: a client, ``osrerank serve`` and ``osrerank worker``, each with its own SDK."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from osrerank import connect
from osrerank.testing import CannedTransport
from tests import servers
from tests.rankings import response_of
from tests.servers import ROOT, free_port
from tests.tracing import Collector, one, recording, told
from tests.workers import PATHS, TINY, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]
KEY = "a key of the tests of traces"
TEXTS = ["salt and water", "a secret", "water"]


@pytest.fixture(scope="module")
def collector():
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def variables(collector):
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100", "OSRERANK_THREADS": "1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory, variables):
    """A Redis with a worker whose messages are signed."""
    folder = tmp_path_factory.mktemp("workers")
    with servers.redis(folder) as url, worker_group(url, folder, environment=variables, key=KEY):
        yield url


@pytest.fixture(scope="module")
def server(tmp_path_factory, variables, broker):
    """The address of a rerank server whose texts go to that worker."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "osrerank", "--model", TINY, "--backend", "workers", "serve", "--port", str(port)]
    environment = {**os.environ, **variables, "PYTHONPATH": PATHS, "OSRERANK_BROKER_URL": broker}
    environment |= {"OSRERANK_WORKERS_KEY": KEY}
    with (tmp_path_factory.mktemp("serve") / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, cwd=ROOT, env=environment)
    try:
        give_up = time.monotonic() + 60
        while not is_ready(address):
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def is_ready(address):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/ready", timeout=30) as answer:
        return answer.status == 200
    return False


def test_a_search_through_a_server_and_a_worker_is_one_trace(server, collector, monkeypatch):
    monkeypatch.setenv("OSRERANK_RERANK_URL", server)
    monkeypatch.setenv("OSRERANK_RERANK_DIALECT", "osrerank")
    options = {"transport_class": CannedTransport, "answer": response_of(TEXTS), "backend": "http", "model": TINY}
    with recording() as exporter, contextlib.closing(connect("http://localhost:9", **options)) as client:
        answer = client.search("salt", index="notes", rerank={"fields": ["text"], "blend": "replace"})
    assert answer["rerank"]["applied"] is True
    own = told(exporter)
    sent = [span for span in own if span.name == "POST"]
    stage = one(own, "stage mono")
    assert {span.parent for span in sent} == {stage.span}
    assert sent[0].attributes["http.response.status_code"] == 200
    foreign = [span for span in collector.wait_for("POST /", "osrerank.score", "process ") if span.trace == stage.trace]
    request, score, chunk = one(foreign, "POST /"), one(foreign, "osrerank.score"), one(foreign, "process ")
    assert (request.parent, score.parent, chunk.parent) == (sent[0].span, request.span, score.span)
    assert (request.service, chunk.service) == ("osrerank-server", "osrerank-worker")
    assert (request.kind, chunk.kind) == ("SERVER", "CONSUMER")
    assert request.attributes["http.route"] in request.name
    assert chunk.attributes["messaging.operation.type"] == "process"
    assert chunk.attributes["osrerank.chunk.outcome"] == "scored"
    assert chunk.attributes["osrerank.chunk.pairs"] == 3
    assert not any(text in str([*own, *foreign]) for text in ("salt", "secret"))


def test_a_worker_goes_on_with_the_trace_of_a_client(broker, collector, monkeypatch):
    monkeypatch.setenv("OSRERANK_BROKER_URL", broker)
    monkeypatch.setenv("OSRERANK_WORKERS_KEY", KEY)
    options = {"transport_class": CannedTransport, "answer": response_of(TEXTS), "backend": "workers", "model": TINY}
    with recording() as exporter, contextlib.closing(connect("http://localhost:9", **options)) as client:
        client.search("water", index="notes", rerank={"fields": ["text"]})
    stage = one(told(exporter), "stage mono")
    give_up = time.monotonic() + 30
    while not (found := [span for span in collector.spans if span.trace == stage.trace]):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert {span.parent for span in found} == {stage.span}


@pytest.mark.parametrize(
    ("body", "status", "is_error"), [(b"{", 400, False), (b'{"query": "salt", "documents": 3}', 422, False)]
)
def test_a_request_that_is_refused_is_told_without_its_body(server, collector, body, status, is_error):
    header = f"00-{status:032x}-00000000000000aa-01"
    headers = {"Content-Type": "application/json", "traceparent": header}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{server}/v1/rerank", body, headers), timeout=30)
    assert refused.value.code == status
    assert json.loads(refused.value.read())["message"]
    give_up = time.monotonic() + 30
    while not (found := [span for span in collector.spans if span.trace == f"{status:032x}"]):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    (span,) = found
    assert span.name == "POST /v1/rerank"
    assert span.attributes["http.response.status_code"] == status
    assert span.is_error is is_error
    assert span.events == {}
    assert "salt" not in str(span)


def test_a_server_without_the_sdk_says_what_to_install(monkeypatch, caplog):
    from osrerank.tracing.export import export_traces

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "unknown")
    assert export_traces("on", "osrerank-server") is False
    assert "[no-traces]" in caplog.text
    assert "pip install opentelemetry-sdk" in caplog.text
    caplog.clear()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert export_traces("on", "osrerank-server") is False
    assert caplog.text == ""
