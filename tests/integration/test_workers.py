"""Real workers behind a real Redis: the same scores as in this process, whatever happens to them."""

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from osrerank import connect
from osrerank.errors import Overloaded, TaskFailed, WorkerError
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.remote.broker import celery_app
from osrerank.scoring.remote.broker import connect as connect_redis
from osrerank.scoring.remote.messages import SCORE, ChunkRequest
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from osrerank.types import Deadline, Scorer
from tests import servers, tls
from tests.articles import fill
from tests.waiting import wait_until
from tests.workers import STAND_IN, TINY, WorkerGroup, worker_group

pytestmark = pytest.mark.integration

QUERY = "what lowers blood pressure"
DOCUMENTS = [f"note {n}: " + "low salt and much water lower the blood pressure " * (1 + n % 7) for n in range(60)]
TUPLES = [(n,) for n in range(len(DOCUMENTS))]
OTHER = str(Path(TINY).parent / "tiny-bert-two-labels")


@pytest.fixture
def own_broker(broker: str) -> str:
    """The same Redis, another database: no worker of another test sees what is sent."""
    return broker.removesuffix("/0") + "/1"


@pytest.fixture(scope="module")
def group(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    with worker_group(broker, tmp_path_factory.mktemp("group"), 2) as group:
        yield group


@pytest.fixture
def remote_scorer(broker: str, group: WorkerGroup) -> Iterator[RemoteScorer]:
    group.wait_for(2)
    scorer = RemoteScorer(broker, TINY, queue_chunks=64)
    yield scorer
    scorer.close()


@pytest.fixture(scope="module")
def local_scorer() -> Scorer:
    return load_scorer(TINY, backend="onnx", threads=1)


@pytest.fixture(scope="module")
def expected(local_scorer: Scorer) -> np.ndarray:
    return local_scorer.score(QUERY, DOCUMENTS, TUPLES).values


@pytest.fixture
def slow_worker(broker: str, tmp_path: Path) -> Iterator[WorkerGroup]:
    """One worker that needs a hundredth of a second for a pair, one pair at a time."""
    options = ("--seconds-per-pair", "0.01")
    with worker_group(broker, tmp_path, model=STAND_IN, module="tests.workers", options=options) as group:
        yield group


@pytest.fixture
def slow_scorer(broker: str, slow_worker: WorkerGroup) -> Iterator[RemoteScorer]:
    scorer = RemoteScorer(broker, STAND_IN, queue_chunks=4)
    yield scorer
    scorer.close()


def test_scores_of_workers_equal_scores_of_this_process(
    remote_scorer: RemoteScorer, local_scorer: Scorer, expected: np.ndarray
) -> None:
    assert isinstance(remote_scorer, Scorer)
    scores = remote_scorer.score(QUERY, DOCUMENTS, TUPLES)
    assert scores.values.tobytes() == expected.tobytes()
    assert (scores.inferences, scores.reached, scores.failures) == (len(TUPLES), len(TUPLES), {})
    assert (remote_scorer.identity, remote_scorer.advice) == (local_scorer.identity, local_scorer.advice)
    np.testing.assert_array_equal(remote_scorer.probabilities(expected), local_scorer.probabilities(expected))


def test_a_search_is_reranked_by_workers(
    broker: str, group: WorkerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_CACHE_MB", "0")
    options = {"fields": ["text"], "depth": 40, "blend": "replace"}
    responses = []
    for backend in ("onnx", "workers"):
        client = connect(f"embedded:{tmp_path}", model=TINY, backend=backend, redis_url=broker)
        fill(client, "notes", [{"text": text} for text in DOCUMENTS])
        responses.append(client.search(QUERY, index="notes", size=30, rerank=options))
        client.close()
    assert responses[1]["rerank"]["applied"] is True
    assert responses[1]["rerank"]["stages"][0]["inferences"] == 40
    assert responses[1]["hits"] == responses[0]["hits"]


def test_a_text_of_any_length_reaches_a_worker_and_fails_nobody(remote_scorer: RemoteScorer) -> None:
    texts = ["the wing", "pressure " * 1_100_000, "x\U0001f600" * 1_500_000, "\ud800 heat"]  # 10 MB, 7.5 MB
    for query in ("wing", "wing " * 2_000_000):
        scores = remote_scorer.score(query, texts, TUPLES[:4])
        expected = load_scorer(TINY, backend="onnx", threads=1).score(query, texts, TUPLES[:4])
        assert not scores.failures
        assert scores.values.tobytes() == expected.values.tobytes()
        assert (scores.truncated, scores.query_truncated) == (expected.truncated, expected.query_truncated)


def test_many_threads_share_few_connections(remote_scorer: RemoteScorer, broker: str, expected: np.ndarray) -> None:
    remote_scorer.score(QUERY, DOCUMENTS, TUPLES)  # it listens for replies from its first call on
    redis = connect_redis(broker)
    connections = len(redis.client_list())
    with ThreadPoolExecutor(16) as threads:
        calls = [threads.submit(remote_scorer.score, QUERY, DOCUMENTS, TUPLES) for _ in range(80)]
        results = [call.result() for call in calls]
    assert len(redis.client_list()) < connections + 3 * 16 + 2  # a few for each thread, not one for each of the calls
    redis.close()
    assert all(scores.values.tobytes() == expected.tobytes() for scores in results)


def test_a_client_works_on_both_sides_of_a_fork(
    remote_scorer: RemoteScorer, expected: np.ndarray, tmp_path: Path
) -> None:
    """As under a server that loads the application and then forks: in a process of its own, this one has threads."""
    script = (
        "import os, sys\n"
        "from osrerank.scoring.remote.scorer import RemoteScorer\n"
        "from tests.integration.test_workers import DOCUMENTS, QUERY, TUPLES\n"
        "scorer = RemoteScorer(sys.argv[1], sys.argv[2], queue_chunks=64)\n"
        "first = scorer.score(QUERY, DOCUMENTS, TUPLES).values.tobytes()\n"
        "child = os.fork()\n"
        "same = scorer.score(QUERY, DOCUMENTS, TUPLES).values.tobytes() == first\n"
        "if child == 0:\n"
        "    os._exit(0 if same else 1)\n"
        "assert same and os.waitpid(child, 0)[1] == 0\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, remote_scorer._url, TINY]
    subprocess.run(
        command, check=True, timeout=60, cwd=servers.ROOT, env={**os.environ, "PYTHONPATH": str(servers.ROOT)}
    )


def test_the_chunks_of_a_killed_worker_are_scored_by_another(
    remote_scorer: RemoteScorer, group: WorkerGroup, expected: np.ndarray
) -> None:
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(remote_scorer.score, QUERY, DOCUMENTS, TUPLES) for _ in range(80)]
        wait_until(calls[0].done)
        group.kill(group.processes[0])
        call_results = [call.result(30) for call in calls]
    group.start(1, wait=False)
    assert all(scores.values.tobytes() == expected.tobytes() for scores in call_results)


def is_held(broker: str, group: WorkerGroup) -> bool:
    """Return whether a worker of the group has a chunk."""
    with connect_redis(broker) as redis:
        return any(heartbeat.held for heartbeat in WorkerRegistry(redis, group.model, group.signer).heartbeats())


def test_a_search_says_that_no_worker_is_left(slow_worker: WorkerGroup, slow_scorer: RemoteScorer, broker: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(slow_scorer.score, "q", ["q"] * 100, [(n,) for n in range(100)])
        wait_until(lambda: is_held(broker, slow_worker))
        slow_worker.kill(slow_worker.processes[0])
        with pytest.raises(TaskFailed, match="no worker is left"):
            call.result(20)
    with pytest.raises(WorkerError, match="osrerank worker"):
        slow_scorer.score("q", ["q"], [(0,)])


def test_a_search_without_workers_keeps_its_first_pass(broker: str, tmp_path: Path) -> None:
    client = connect(f"embedded:{tmp_path}", model="nobody/serves-this", backend="workers", redis_url=broker)
    client.index(index="notes", id="1", body={"text": "salt"}, refresh=True)
    for options in ({}, {"blend": "replace"}):
        response = client.search("salt", index="notes", rerank=options)
        assert response["rerank"]["applied"] is False
        assert "osrerank worker" in response["rerank"]["reason"]
        assert len(response["hits"]["hits"]) == 1
    with pytest.raises(WorkerError):
        client.search("salt", index="notes", rerank={"on_failure": "raise"})
    client.close()


def test_a_deadline_keeps_the_scores_that_workers_sent_in_time(slow_scorer: RemoteScorer) -> None:
    started = time.monotonic()
    tuples = [(n,) for n in range(1_000)]  # ten chunks of a second each, two at a time in either order
    scores = slow_scorer.score("q", ["q " * 40] * 1_000, tuples, deadline=Deadline.after_ms(5_000))
    assert time.monotonic() - started < 8
    assert 100 <= scores.reached < 1_000
    assert np.isnan(scores.values[scores.reached :]).sum() >= 100


def test_a_search_is_refused_at_once_if_too_many_chunks_wait(slow_scorer: RemoteScorer, broker: str) -> None:
    hundred = (["q"] * 100, [(n,) for n in range(100)])
    slow_scorer.score("q", *hundred)
    wait_until(lambda: slow_scorer.workers().first.seconds_per_chunk > 0)  # the worker has learnt what a chunk costs
    with ThreadPoolExecutor(12) as threads, connect_redis(broker) as redis:
        calls = [
            threads.submit(slow_scorer.score, "q", *hundred, deadline=Deadline.after_ms(60_000)) for _ in range(12)
        ]
        wait_until(lambda: redis.llen(slow_scorer.workers().first.queue) >= 4)
        started = time.monotonic()
        with pytest.raises(Overloaded, match="busy"):
            slow_scorer.score("q", *hundred, deadline=Deadline.after_ms(500))
        with pytest.raises(Overloaded, match="are waiting"):
            slow_scorer.score("q", *hundred)
        assert time.monotonic() - started < 5  # the twelve take twelve
        refused = [call for call in calls if isinstance(call.exception(), Overloaded)]
        assert all(call.result().reached == 100 for call in calls if call not in refused)
    assert 0 < len(refused) < 12


def test_scores_of_two_models_are_never_mixed_during_an_upgrade(broker: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    old, new = (load_scorer(path, backend="onnx", threads=1).score(QUERY, DOCUMENTS, TUPLES) for path in (TINY, OTHER))
    group = WorkerGroup(broker, tmp_path / "logs", model=str(model))
    scorer = RemoteScorer(broker, str(model), queue_chunks=64)
    try:
        group.start(1)
        before = scorer.score(QUERY, DOCUMENTS, TUPLES)
        first = group.processes[0]
        shutil.rmtree(model)
        shutil.copytree(OTHER, model)
        group.start(1)
        all_scores = [scorer.score(QUERY, DOCUMENTS, TUPLES) for _ in range(3)]
        group.processes.remove(first)
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        wait_until(lambda: scorer.workers().first.identity != before.identity)
        after = scorer.score(QUERY, DOCUMENTS, TUPLES)
    finally:
        scorer.close()
        group.stop()
    for scores in (before, *all_scores):
        assert scores.values.tobytes() == old.values.tobytes()
    assert after.values.tobytes() == new.values.tobytes()
    assert after.identity != before.identity


def garbage(rng: random.Random, queue: str) -> bytes:
    """Return what no client would put into a queue."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return json.dumps(rng.choice([None, [], {}, 5, {"body": 1}, {"properties": {}}])).encode()
    body = base64.b64encode(rng.randbytes(rng.randrange(100))).decode()
    content = rng.choice(["application/x-msgpack", "application/x-python-serialize", "application/json", "text/odd"])
    headers = rng.choice([None, {}, {"task": SCORE}, {"task": SCORE, "id": "x", "eta": "soon"}, {"task": "os.system"}])
    properties = {
        "delivery_tag": str(rng.random()),
        "delivery_info": {"exchange": "", "routing_key": queue},
        "body_encoding": rng.choice(["base64", "odd"]),
    }
    message = {"body": body, "content-type": content, "content-encoding": "binary", "headers": headers}
    return json.dumps({**message, "properties": properties}).encode()


def test_a_worker_survives_malformed_messages_in_its_queue(
    own_broker: str, tmp_path: Path, expected: np.ndarray
) -> None:
    rng = random.Random(0)
    redis = connect_redis(own_broker)
    with worker_group(own_broker, tmp_path) as group:
        scorer = RemoteScorer(own_broker, TINY, queue_chunks=64)
        queue = scorer.workers().first.queue
        vectors = ChunkRequest("c", "m", "i", 0.0, None, "secret words", ["secret words"], [(0,)]).encode()
        app = celery_app(own_broker)
        redis.rpush(queue, *(garbage(rng, queue) for _ in range(2_000)))
        for _ in range(500):
            damaged = bytearray(vectors)
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            app.send_task(SCORE, args=rng.choice([(bytes(damaged),), (), (5,), (b"a", "b"), ({},)]), queue=queue)
        app.send_task(SCORE, args=(vectors + b"x" * (9 << 20),), queue=queue)
        app.close()
        wait_until(lambda: redis.llen(queue) == 0, 90)
        assert scorer.score(QUERY, DOCUMENTS, TUPLES).values.tobytes() == expected.tobytes()
        assert len(group.processes) == 1
        assert group.processes[0].poll() is None
        scorer.close()
        log = group.log()
    redis.close()
    assert "secret" not in log
    assert "Traceback" not in log


def test_a_chunk_that_cannot_be_scored_is_answered_without_its_text_in_the_log(
    remote_scorer: RemoteScorer, group: WorkerGroup
) -> None:
    with pytest.raises(TaskFailed, match="duo"):
        remote_scorer.score("confidential question", ["confidential answer"] * 2, [(0, 1)])
    remote_scorer.score("confidential question", ["confidential answer"], [(0,)])
    assert "scoring a chunk failed" in group.log()
    assert "confidential" not in group.log()


def test_check_tells_whether_a_worker_is_ready(broker: str, group: WorkerGroup) -> None:
    group.wait_for(2)

    def check(model: str, url: str = broker) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "osrerank_workers", "--model", model, "--broker-url", url, "--check"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=servers.ROOT)

    ready = check(TINY)
    assert (ready.returncode, "is ready" in ready.stdout) == (0, True)
    absent = check("no/model")
    assert absent.returncode == 1
    assert "no worker of no/model is ready" in absent.stderr
    assert check(TINY, f"redis://127.0.0.1:{servers.free_port()}/0").returncode == 1


@pytest.mark.slow
def test_celerys_own_command_starts_the_same_worker(broker: str, tmp_path: Path, expected: np.ndarray) -> None:
    environment = {**os.environ, "OSRERANK_REDIS_URL": broker, "OSRERANK_MODEL": OTHER, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "celery", "-A", "osrerank_workers.app", "worker"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=servers.ROOT)
    try:
        WorkerGroup(broker, tmp_path, model=OTHER).wait_for(1)
        scorer = RemoteScorer(broker, OTHER, queue_chunks=64)
        assert scorer.score(QUERY, DOCUMENTS, TUPLES).reached == len(TUPLES)
        scorer.close()
    finally:
        process.terminate()
        assert process.wait(30) == 0
    refused = subprocess.run(
        [*command, "-P", "solo"], env=environment, capture_output=True, check=False, cwd=servers.ROOT
    )
    assert refused.returncode == 2
    assert b"-P threads" in refused.stderr


def test_a_model_that_cannot_be_loaded_ends_the_worker(broker: str, tmp_path: Path) -> None:
    options = ["--model", str(tmp_path), "--broker-url", broker, "--log-format", "json"]
    command = [sys.executable, "-m", "osrerank_workers", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=servers.ROOT, timeout=60)
    assert ended.returncode == 1
    line = json.loads(next(line for line in ended.stderr.splitlines() if '"CRITICAL"' in line))
    assert "cannot start" in line["message"]


@pytest.mark.slow
def test_workers_reach_redis_with_tls_and_a_password(tmp_path: Path) -> None:
    with (
        tls.tls_redis(tmp_path / "redis", password="open-sesame") as redis_url,
        worker_group(redis_url, tmp_path / "group") as group,
    ):
        with connect(f"embedded:{tmp_path / 'engine'}", model=TINY, backend="workers", redis_url=redis_url) as client:
            fill(client, "secured", [{"text": DOCUMENTS[0]}])
            options = {"fields": ["text"], "on_failure": "raise"}
            stage_reports = [
                client.search(QUERY, index="secured", rerank=options)["rerank"]["stages"][0] for _ in range(2)
            ]
        assert [(stage["inferences"], stage["cached"]) for stage in stage_reports] == [(1, 0), (0, 1)]
        assert "sesame" not in group.log()
        untrusted = redis_url.split("?")[0]
        with pytest.raises(WorkerError):
            RemoteScorer(untrusted, TINY, queue_chunks=64).score("q", ["d"], [(0,)])
