"""The backend ``http`` against ``osrerank serve`` in another process, and against servers that fail in every way."""

import contextlib
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from prometheus_client import REGISTRY

from osrerank import Reranker, connect, pipeline
from osrerank._log_throttle import LogThrottle
from osrerank.doctor import examine
from osrerank.errors import EndpointError, OsrerankError
from osrerank.settings import Settings
from tests.articles import fill
from tests.rankings import ids
from tests.rerank_server import Reply, answering, server_file
from tests.servers import ROOT, free_port
from tests.serving import serving
from tests.waiting import wait_until
from tests.workers import TINY, worker_group

pytestmark = pytest.mark.integration
ARGUMENTS = ("--model", TINY, "--backend", "onnx")
ENVIRONMENT = {"OSRERANK_THREADS": "1", "OSRERANK_SERVER_TOKEN": "t0ken"}
INDEX, QUERY, DEPTH = "notes", "pressure of the wing", 30
WORDS = ["wing", "pressure", "heat", "flow", "boundary", "layer", "plate", "shock", "cone", "body", "speed", "of", "at"]
DOCUMENTS = {f"d{at}": " ".join(WORDS[(at * step) % len(WORDS)] for step in range(3, 9 + at % 20)) for at in range(60)}
WHOLE = {"fields": ["text"], "depth": DEPTH, "blend": "replace"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve") / "log", *ARGUMENTS, environment=ENVIRONMENT) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An index in the embedded engine, as an address."""
    address = f"embedded:{tmp_path_factory.mktemp('engine')}"
    with contextlib.closing(connect(address)) as client:
        fill(client, INDEX, {name: {"text": text} for name, text in DOCUMENTS.items()})
    return address


@pytest.fixture(scope="module")
def expected(engine):
    """What this process' own model answers."""
    with contextlib.closing(connect(engine, model=TINY, backend="onnx")) as client:
        return client.search(QUERY, index=INDEX, size=DEPTH, rerank=WHOLE)


@pytest.fixture(scope="module")
def first_pass(engine):
    with contextlib.closing(connect(engine)) as client:
        return ids(client.search(QUERY, index=INDEX, size=DEPTH))


@pytest.fixture
def use(tmp_path, monkeypatch):
    """Return a function that names a server in a settings file and the environment, as a deployment does."""

    def set_it(url, **keys):
        monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(server_file(tmp_path, url, **keys)))
        monkeypatch.setenv("OSRERANK_RERANK_KEY", "t0ken")
        monkeypatch.setenv("OSRERANK_BACKEND", "http")

    return set_it


def test_a_search_scored_by_a_server_equals_a_search_scored_in_process(use, server, engine, expected):
    use(server)
    with contextlib.closing(connect(engine, backend="http")) as client:
        response, again = (client.search(QUERY, index=INDEX, size=DEPTH, rerank=WHOLE) for _ in range(2))
    assert ids(response) == ids(expected)
    stage = response["rerank"]["stages"][0]
    assert (response["rerank"]["applied"], stage["inferences"], stage["candidates"]) == (True, DEPTH, DEPTH)
    assert stage["model"] == f"the model of {urlsplit(server).netloc}"
    assert again["rerank"]["stages"][0]["cached"] == DEPTH
    assert ids(again) == ids(expected)
    for mine, hit in zip(response["hits"]["hits"], expected["hits"]["hits"], strict=True):
        assert mine["_rerank"]["mono"] == pytest.approx(hit["_rerank"]["mono"], abs=2e-6)


DIALECTS = ("cohere-v1", "cohere-v2", "jina", "tei", "vllm", "vllm-score", "osrerank")


@pytest.mark.parametrize(
    ("dialect", "path"), [*((name, "") for name in DIALECTS), ("voyage", "/voyage/v1"), ("vllm", "/v1")]
)
def test_every_dialect_of_a_rerank_server_gives_the_same_scores(use, server, dialect, path):
    use(server + path, dialect=dialect)
    texts = list(DOCUMENTS.values())[:20]
    with Reranker(TINY, backend="onnx") as local, Reranker("any", backend="http") as remote:
        remote_ranking, own = remote.rank(QUERY, texts), local.rank(QUERY, texts)
    assert [entry.doc_id for entry in remote_ranking] == [entry.doc_id for entry in own]
    assert [entry.probability for entry in remote_ranking] == pytest.approx(
        [entry.probability for entry in own], abs=2e-7
    )
    assert [entry.score for entry in remote_ranking] == pytest.approx([entry.score for entry in own], abs=1e-4)


def test_the_wrong_key_is_named_and_not_shown(use, server, engine, monkeypatch):
    use(server)
    monkeypatch.setenv("OSRERANK_RERANK_KEY", "wr0ng")
    with contextlib.closing(connect(engine)) as client:
        response = client.search(QUERY, index=INDEX, rerank=WHOLE)
        with pytest.raises(
            EndpointError, match=r"answered 401: .*; set OSRERANK_RERANK_KEY to a key that the server accepts"
        ):
            client.search(QUERY, index=INDEX, rerank={**WHOLE, "on_failure": "raise"})
    assert "401" in response["rerank"]["reason"]
    assert "wr0ng" not in json.dumps(response)


def test_the_doctor_scores_a_pair_on_the_rerank_server_and_names_faults(use, server, engine):
    use(server)
    findings = {finding.part: finding for finding in examine(Settings.load(url=engine))}
    assert findings["model"].status == "ok"
    assert f"at {server}: logit" in findings["model"].found
    assert findings["workers"].found.startswith("the rerank server scores")
    use("http://127.0.0.1:9")
    findings = {finding.part: finding for finding in examine(Settings.load(url=engine))}
    assert findings["model"].status == "failed"
    assert "the rerank server 127.0.0.1:9 cannot be reached" in findings["model"].found
    assert "[http] of osrerank.toml" in findings["model"].fix


def test_a_worker_may_ask_a_rerank_server(server, engine, expected, redis_url, tmp_path):
    file = str(server_file(tmp_path, server))
    environment = {"OSRERANK_SETTINGS_FILE": file, "OSRERANK_RERANK_KEY": "t0ken", "OSRERANK_BACKEND": "http"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "workers")))
    with (
        worker_group(redis_url, tmp_path, model="remote", environment=environment),
        contextlib.closing(connect(engine, model="remote", backend="workers", redis_url=redis_url)) as client,
    ):
        response = client.search(QUERY, index=INDEX, size=DEPTH, rerank=WHOLE)
    assert response["rerank"]["applied"] is True, response["rerank"]
    assert ids(response) == ids(expected)


FAULTS = [
    (Reply({"message": "defect"}, 500), "answered 500: defect"),
    (Reply(None), "closed the connection without a response"),
    (Reply({"results": []}), "the server's response has no score for it"),
]


@pytest.mark.parametrize(("reply", "reason"), FAULTS, ids=["500", "no answer", "no scores"])
def test_a_failing_rerank_server_leaves_the_first_pass_order(
    use, engine, first_pass, reply, reason, caplog, monkeypatch
):
    monkeypatch.setattr(pipeline, "log_throttle", LogThrottle())
    with answering(lambda _received: reply) as broken:
        use(broken.url, dialect="vllm")
        with contextlib.closing(connect(engine)) as client:
            before = unapplied()
            response = client.search(QUERY, index=INDEX, size=DEPTH, rerank={**WHOLE, "deadline_ms": 5000})
            with pytest.raises(OsrerankError):
                client.search(QUERY, index=INDEX, rerank={**WHOLE, "deadline_ms": 5000, "on_failure": "raise"})
    assert response["rerank"]["applied"] is False
    assert reason in response["rerank"]["reason"]
    assert ids(response) == first_pass
    assert unapplied() == before + 2
    assert reason.removesuffix(": defect") in caplog.text  # without the server's words, which might quote the query
    assert "defect" not in caplog.text


def unapplied():
    return REGISTRY.get_sample_value("osrerank_searches_total", {"applied": "false"}) or 0.0


@contextlib.contextmanager
def ending(ended):
    """Let threads end that wait for an event, also where the test fails."""
    try:
        yield
    finally:
        ended.set()


def test_searches_of_16_threads_survive_restarts_of_the_rerank_server(
    use, engine, expected, first_pass, tmp_path, monkeypatch
):
    port, ended, responses = free_port(), threading.Event(), []
    use(f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OSRERANK_CACHE_LOCAL_MB", "0")  # each search needs the server

    def search_on():
        while not ended.wait(0.02):
            options = {**WHOLE, "deadline_ms": 1000}
            responses.append(client.search(QUERY, index=INDEX, size=DEPTH, rerank=options))

    def wait_for_one_that_is(applied):
        start = len(responses)
        wait_until(lambda: any(response["rerank"]["applied"] is applied for response in responses[start:]))

    with contextlib.closing(connect(engine)) as client, ThreadPoolExecutor(16) as threads, ending(ended):
        with serving(tmp_path / "first", *ARGUMENTS, port=port, environment=ENVIRONMENT) as (process, _):
            searches = [threads.submit(search_on) for _ in range(16)]
            wait_for_one_that_is(True)
            for sent, applied in ((signal.SIGSTOP, False), (signal.SIGCONT, True), (signal.SIGKILL, False)):
                process.send_signal(sent)
                wait_for_one_that_is(applied)
        with serving(tmp_path / "second", *ARGUMENTS, port=port, environment=ENVIRONMENT):
            wait_for_one_that_is(True)
            ended.set()
            for search in searches:
                search.result()
    for response in responses:
        if response["rerank"]["applied"] is True:
            assert ids(response) == ids(expected)
        else:
            assert response["rerank"]["reason"]
            assert ids(response) == first_pass
