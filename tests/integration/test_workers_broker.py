"""Workers and clients when the broker goes away, holds forged messages, requires certificates, or is a cluster."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import numpy as np
import pytest
from redis.exceptions import NoPermissionError, RedisError

from osrerank.errors import ConfigError, WorkerError
from osrerank.metrics import BROKER_FAILURES, MESSAGES_REFUSED
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.messages import ChunkRequest, Heartbeat, Reply
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import PREFIX, WorkerRegistry, queue_name
from osrerank.settings import Settings
from osrerank.types import Advice, Deadline, Scores
from osrerank_workers.broker_health import BrokerHealth
from osrerank_workers.queue_metrics import QueueCollector
from osrerank_workers.run import await_broker
from tests import servers, tls
from tests.toxics import Proxies, Toxic
from tests.unit.osrerank_workers.test_probes import asked
from tests.waiting import wait_until
from tests.workers import STAND_IN, WorkerGroup, worker_group

pytestmark = pytest.mark.integration

KEY = "a-key-for-both-sides-of-the-broker"
FAST = ("--seconds-per-pair", "0.0001")
HUNDRED = (["q"] * 100, [(n,) for n in range(100)])


@pytest.fixture(scope="module")
def signed(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    folder = tmp_path_factory.mktemp("signed")
    with worker_group(broker, folder, model=STAND_IN, module="tests.workers", options=FAST, key=KEY) as group:
        yield group


def scorer_of(url: str, signer: Signer) -> RemoteScorer:
    return RemoteScorer(url, STAND_IN, queue_chunks=64, signer=signer)


class Forger:
    """Somebody who reads and writes the broker, and may have another key."""

    def __init__(self, url: str, signer: Signer) -> None:
        self.redis, self.signer = connect(url), signer
        self.identity, self.taken = f"{STAND_IN}/length", 0
        self.ended = threading.Event()

    def register(self) -> None:
        """Pose as a worker of the model, whose queue is the one that others take from."""
        now_s = WorkerRegistry(self.redis, STAND_IN, self.signer).now_s()
        queue = queue_name(STAND_IN, self.identity)
        forged = Heartbeat("forger", "h", queue, STAND_IN, self.identity, Advice(), True, (), 0.0, 99, 0.0, now_s)
        self.redis.set(f"{PREFIX}worker:forger", self.signer.sign("heartbeat", forged.encode()))
        self.redis.sadd(f"{PREFIX}workers:{STAND_IN}", "forger")

    def answer(self) -> None:
        """Answer whatever is in the queue before the workers do, and leave it there."""
        while not self.ended.is_set():
            for message in self.redis.lrange(queue_name(STAND_IN, self.identity), 0, -1):
                sealed = msgpack.unpackb(base64.b64decode(json.loads(message)["body"]))[0][0]
                request = ChunkRequest.decode(sealed[33:] if sealed[:1] == b"\xc1" else sealed)
                scores = Scores(np.full(len(request.tuples), 99.0, dtype=np.float32))
                reply = Reply(request.chunk, "forger", self.identity, scores)
                self.redis.rpush(request.reply_queue, self.signer.sign("reply", reply.encode()))
                self.taken += 1


@pytest.mark.parametrize("key", ["", "another-key-than-both-sides-have"])
def test_forged_heartbeats_and_replies_change_no_score(signed: WorkerGroup, broker: str, key: str) -> None:
    forger = Forger(broker, Signer([key.encode()] if key else []))
    before = MESSAGES_REFUSED.labels("reply", "wrong_key" if key else "unsigned")._value.get()
    scorer = scorer_of(broker, signed.signer)
    thread = threading.Thread(target=forger.answer)
    thread.start()
    forger.register()
    try:
        with ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(scorer.score, "q", ["q" * 5] * 50, HUNDRED[1][:50]) for _ in range(200)]
            call_results = [call.result(30) for call in calls]
        assert [heartbeat.worker for heartbeat in scorer.workers().heartbeats] != ["forger"]
    finally:
        forger.ended.set()
        thread.join()
        scorer.close()
        forger.redis.close()
    assert {float(value) for scores in call_results for value in scores.values} == {5.0}
    assert forger.taken > 0
    assert MESSAGES_REFUSED.labels("reply", "wrong_key" if key else "unsigned")._value.get() > before


def test_queue_metrics_show_depth_and_oldest_age(signed: WorkerGroup, broker: str) -> None:
    other_database = broker.removesuffix("/0") + "/1"  # nobody takes from it
    with connect(other_database) as redis:
        registry = WorkerRegistry(redis, STAND_IN, signed.signer)
        queue = queue_name(STAND_IN, "id")
        collector = QueueCollector(redis, registry, signed.signer, queue)

        def shown() -> dict[str, float]:
            return {metric.name: metric.samples[0].value for metric in collector.collect()}

        assert list(shown().values()) == [0, 0]
        scorer = scorer_of(other_database, signed.signer)
        registry.renew(Heartbeat("w", "h", queue, "m", "id", Advice(), True, (), 0.0, 1, 0.0, registry.now_s()))
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(scorer.score, "q", *HUNDRED, deadline=Deadline.after_ms(1_500))
            wait_until(lambda: sum(shown().values()) > 1.2)  # one chunk, and its age in seconds
            depth, oldest = shown().values()
            assert depth == 1
            assert 0.2 < oldest < 30
            call.result()
        redis.rpush(queue, b"no message")
        assert list(shown().values()) == [2]
        scorer.close()
    with connect(f"redis://127.0.0.1:{servers.free_port()}/0") as nobody:
        assert list(QueueCollector(nobody, WorkerRegistry(nobody, "m", Signer()), Signer(), "q").collect()) == []


def test_workers_and_clients_reconnect_to_a_restarted_broker(tmp_path: Path) -> None:
    away_s = 4.0
    binary, port, probes = servers.redis_binary(), servers.free_port(), servers.free_port()
    environment = {"OSRERANK_PROBE_PORT": str(probes)}
    with servers.start_redis(binary, tmp_path, port=port) as (url, process):
        group_options = {"model": STAND_IN, "module": "tests.workers", "options": FAST, "key": KEY}
        group = WorkerGroup(url, tmp_path / "group", environment=environment, **group_options)
        group.start(1)
        scorer = scorer_of(url, group.signer)
        assert scorer.score("q", *HUNDRED).reached == 100
        assert (asked(probes, "/live")[0], asked(probes, "/ready")[0]) == (200, 200)
        process.kill()
        process.wait()
    gone, failures, took = time.monotonic(), BROKER_FAILURES._value.get(), []
    while time.monotonic() - gone < away_s:
        started = time.monotonic()
        with pytest.raises(WorkerError, match="broker"):
            scorer.score("q", *HUNDRED)
        took.append(time.monotonic() - started)
        time.sleep(0.02)
    dialled = BROKER_FAILURES._value.get() - failures
    assert (asked(probes, "/live")[0], asked(probes, "/ready")[0]) == (200, 503)
    with servers.start_redis(binary, tmp_path, port=port):
        back = time.monotonic()
        while time.monotonic() - back < 60:
            try:
                scores = scorer.score("q", *HUNDRED)
                break
            except WorkerError:
                time.sleep(0.02)
        reranked_s = time.monotonic() - back
        scorer.close()
        log = group.log()
        assert group.stop() == [0]
    assert scores.reached == 100
    assert reranked_s < 30
    assert dialled < 3 + away_s
    assert len(took) > 3 * dialled
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_silent_or_slow_broker_delays_no_search_by_more_than_a_second(signed: WorkerGroup, broker: str) -> None:
    """This holds for each request: listing workers, reading the queue's length and sending a chunk."""
    for kind in ("swallow", "latency"):
        with Proxies() as proxies:
            port = proxies.open("broker", int(broker.rsplit(":", 1)[1].split("/", maxsplit=1)[0]))
            scorer = scorer_of(f"redis://127.0.0.1:{port}/0", signed.signer)
            for _ in range(3):
                assert scorer.score("q", *HUNDRED, deadline=Deadline.after_ms(30_000)).reached == 100
            proxies.infect("broker", Toxic(kind, 700))
            took = []
            for _ in range(6):
                started = time.monotonic()
                with contextlib.suppress(WorkerError):
                    assert scorer.score("q", *HUNDRED, deadline=Deadline.after_ms(200)).reached < 100
                took.append(time.monotonic() - started)
            scorer.close()
        assert max(took) < 1.2, took


def test_a_draining_worker_finishes_its_chunks(broker: str, tmp_path: Path) -> None:
    model = "drained"
    group_options = {"model": model, "module": "tests.workers", "options": ("--seconds-per-pair", "0.004"), "key": KEY}
    with worker_group(broker, tmp_path, **group_options) as group:
        scorer = RemoteScorer(broker, model, queue_chunks=64, signer=group.signer)
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(scorer.score, "q", *HUNDRED) for _ in range(2)]
            give_up = time.monotonic() + 10
            while time.monotonic() < give_up:
                with connect(broker) as redis:
                    (heartbeat,) = WorkerRegistry(redis, model, group.signer).heartbeats()
                if len(heartbeat.held) == 2:
                    break
            assert group.stop() == [0]
            assert [call.result(10).reached for call in calls] == [100, 100]
        scorer.close()


def test_workers_and_clients_work_as_a_restricted_redis_user_with_a_client_certificate(tmp_path: Path) -> None:
    user = "scoring ~osrerank:* ~_kombu.* ~unacked* &* +@all -@admin -@dangerous"
    with tls.tls_redis(tmp_path / "redis", password="open-sesame", user=user, asks_clients=True) as url:
        group_options = {"model": STAND_IN, "module": "tests.workers", "options": FAST, "key": KEY}
        with worker_group(url, tmp_path / "group", **group_options) as group:
            scorer = scorer_of(url, group.signer)
            assert scorer.score("q", *HUNDRED).reached == 100
            scorer.close()
        with (
            connect(url.split("&ssl_certfile")[0]) as stranger,
            pytest.raises(RedisError),
        ):
            stranger.ping()
        with connect(url) as client, pytest.raises(NoPermissionError):
            client.get("another application's")
        assert "sesame" not in group.log()


@pytest.mark.parametrize("mode", ["cluster", "sentinel"])
def test_redis_cluster_and_sentinel_are_refused_with_a_clear_error(tmp_path: Path, mode: str) -> None:
    options = ("--cluster-enabled", "yes") if mode == "cluster" else ("--sentinel",)
    if mode == "sentinel":
        (tmp_path / "sentinel.conf").write_text("sentinel monitor broker 127.0.0.1 1 1\n")
    configuration = tmp_path / "sentinel.conf" if mode == "sentinel" else None
    made = servers.start_redis(servers.redis_binary(), tmp_path, options=options, configuration=configuration)
    with made as (url, _):
        with pytest.raises(WorkerError, match=f"in {mode} mode: Redis Sentinel and Redis Cluster are not supported"):
            await_broker(url, BrokerHealth("a worker"))
        scorer = scorer_of(url, Signer())
        with pytest.raises(WorkerError, match="not supported: use a single Redis"):
            scorer.score("q", ["d"], [(0,)])
        scorer.close()


@pytest.mark.parametrize(
    "url", ["sentinel://h:26379/x", "redis+cluster://h", "rediss+sentinel://h", "redis://a:1,b:2/0"]
)
def test_cluster_and_sentinel_urls_are_refused_when_settings_load(url: str) -> None:
    with pytest.raises(ConfigError, match="Sentinel and Redis Cluster are not supported"):
        Settings.load(broker_url=url)
    assert Settings.load(broker_url="redis://:pa,ss@h:1/0").broker()
