"""Clients, a broker and workers that die, answer twice or late: each call has its own scores, or says what it lacks."""

import base64
import json
import secrets
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from redis import Redis, RedisError

from osrerank.errors import ScoringError, WorkerError
from osrerank.scoring.remote import delivery, worker_group, worker_registry
from osrerank.scoring.remote.messages import VERSION, ChunkRequest, Reply
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank.types import Deadline, Scores
from osrerank_workers.service import WorkerService
from tests import machines
from tests.toxics import Proxies, Toxic

pytestmark = pytest.mark.integration

KEY = "the-key-of-the-machine"
PATIENCE_S = 30.0
"""No call may take longer, however busy the machine is; all have deadlines of less than a second."""
LONG = "x" * 2_500
"""So that the documents of a call are divided among workers."""
kinds, places = st.sampled_from(["old", "new"]), st.integers(0, 3)


def value_of(kind: str, query: str, text: str) -> float:
    """Return a score that no other query, document or model has."""
    return float(zlib.crc32(f"{kind} {query} {text}".encode()) % (1 << 23))


class Model(FunctionScorer):
    """A model whose scores are known, of an identity of its own."""

    __slots__ = ("_kind",)

    def __init__(self, kind: str) -> None:
        super().__init__(lambda query, text: value_of(kind, query, text))
        object.__setattr__(self, "_kind", kind)

    @property
    def identity(self) -> str:
        return f"known/{self._kind}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that takes seconds take tenths of them."""
    for module in (delivery, worker_registry):
        monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(delivery, "LOST_AFTER_S", 0.12)
    monkeypatch.setattr(delivery, "GIVE_UP_S", 0.6)
    monkeypatch.setattr(worker_group, "FRESH_S", 0.05)
    monkeypatch.setattr(worker_registry, "DEAD_AFTER_S", 0.4)


@dataclass
class Worker:
    """A worker that does what it is told: its service is the real one, what Celery does for it is done by hand."""

    service: WorkerService
    kind: str
    held: list[tuple[str, bytes]] = field(default_factory=list)

    def beat(self) -> None:
        self.service.registry.renew(self.service.heartbeat())

    def take(self, redis: Redis) -> bool:
        """Take the next chunk from the queue."""
        message: Any = redis.rpop(self.service.queue)
        if message is None:
            return False
        task = json.loads(message)
        chunk = task["headers"]["id"]
        self.service.register_chunk(chunk)
        self.held.append((chunk, msgpack.unpackb(base64.b64decode(task["body"]))[0][0]))
        return True


@dataclass
class Call:
    """A call that is under way."""

    query: str
    documents: list[str]
    future: "Future[Scores]"


@dataclass
class World:
    """What all examples share."""

    direct: str
    redis: Redis
    proxies: Proxies
    signer: Signer

    def url(self, link: str) -> str:
        return f"redis://127.0.0.1:{self.proxies.links[link].port}/0"


@pytest.fixture
def world(redis_url: str, hasty: None) -> Iterator[World]:
    with Proxies() as proxies, Redis.from_url(redis_url) as redis:
        for link in ("client", "worker"):
            proxies.open(link, int(redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0]))
        yield World(redis_url, redis, proxies, Signer([KEY.encode()]))


class WorkersMachine(RuleBasedStateMachine):
    """Calls of one client, and workers of two models, an old one and a new one."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.name = world, f"machine-{secrets.token_hex(6)}"
        self.scorer = RemoteScorer(world.url("client"), self.name, queue_chunks=4, signer=world.signer)
        self.workers: list[Worker] = []
        self.dead: list[Worker] = []
        self.done: list[tuple[Worker, str, bytes]] = []
        self.calls: list[Call] = []
        self.threads = ThreadPoolExecutor(16)
        self.ended = threading.Event()
        self.beating = threading.Thread(target=self.keep_beating)
        self.beating.start()
        self.begin_worker("old")
        self.begin_worker("old")

    def keep_beating(self) -> None:
        while not self.ended.wait(0.04):
            for worker in list(self.workers):
                try:
                    worker.beat()
                except RedisError:
                    continue

    @precondition(lambda self: len(self.workers) < 4)
    @rule(kind=kinds)
    def begin_worker(self, kind: str) -> None:
        settings = Settings.load(model=self.name, broker_url=self.world.url("worker"), signing_key=KEY)
        worker = Worker(WorkerService(settings, Model(kind)), kind)
        worker.service.load()
        self.workers.append(worker)
        try:
            worker.beat()
        except RedisError:
            return

    @rule(count=st.integers(1, 5), ms=st.sampled_from([150, 400, 800]))
    def call(self, count: int, ms: int) -> None:
        """Ask for the scores of documents that no other call has."""
        if sum(not call.future.done() for call in self.calls) >= 12:
            return
        query = f"query {len(self.calls)}"
        documents = [f"{query} document {index} {LONG}" for index in range(count)]
        tuples, deadline = [(index,) for index in range(count)], Deadline.after_ms(ms)
        future = self.threads.submit(self.scorer.score, query, documents, tuples, deadline=deadline)
        self.calls.append(Call(query, documents, future))
        time.sleep(0.02)

    @rule(place=places, most=st.integers(1, 3))
    def take(self, place: int, most: int) -> None:
        for worker in self.workers[place : place + 1]:
            for _ in range(most):
                worker.take(self.world.redis)

    @rule(place=places, times=st.integers(1, 2), first=st.booleans())
    def answer(self, place: int, times: int, first: bool) -> None:
        """Answer a chunk that a worker holds, maybe twice, and not always the oldest."""
        for worker in self.workers[place : place + 1]:
            if worker.held:
                chunk, message = worker.held.pop(0 if first else -1)
                for _ in range(times):
                    worker.service.handle(chunk, message)
                self.done.append((worker, chunk, message))

    @rule(place=places)
    def work(self, place: int) -> None:
        """Take and answer all that there is."""
        for worker in self.workers[place : place + 1]:
            while worker.take(self.world.redis):
                continue
            while worker.held:
                self.answer(place, 1, first=True)

    @rule(place=places, number=st.integers(0, 5))
    def answer_again(self, place: int, number: int) -> None:
        """Let a worker answer what was answered long ago, maybe by another one."""
        if not self.done:
            return
        _, chunk, message = self.done[number % len(self.done)]
        for worker in self.workers[place : place + 1]:
            worker.service.handle(chunk, message)

    @rule(place=places)
    def die(self, place: int) -> None:
        """Kill a worker with what it holds."""
        for worker in self.workers[place : place + 1]:
            self.workers.remove(worker)
            self.dead.append(worker)

    @rule()
    def late(self) -> None:
        """Let a worker that was taken for dead answer what it had."""
        for worker in self.dead[-1:]:
            while worker.held:
                worker.service.handle(*worker.held.pop())

    @rule(place=places, kind=st.sampled_from(["version", "unsigned", "swapped", "short", "noise"]))
    def mislead(self, place: int, kind: str) -> None:
        """Put into the client's reply queue what is no answer to what it asked."""
        pending = [finished for worker in self.workers for finished in worker.held] or [
            finished[1:] for finished in self.done
        ]
        if not pending:
            return
        requests = [ChunkRequest.decode(self.world.signer.verify("request", message)) for _, message in pending]
        request, other_request = requests[place % len(pending)], requests[(place + 1) % len(pending)]
        size = max(1, len(request.tuples) - (kind == "short"))
        reply = Reply(request.chunk, "w", request.identity, Scores(np.full(size, 7.0, dtype=np.float32)))
        content = reply.encode()
        if kind == "version":
            content = msgpack.packb({**msgpack.unpackb(content), "version": VERSION - 1})
        if kind == "swapped":  # answered under another id, as a request would be
            content, sealed = other_request.encode(), self.world.signer.sign("request", other_request.encode())
        else:
            sealed = content if kind == "unsigned" else self.world.signer.sign("reply", content)
        if kind == "noise":
            sealed = secrets.token_bytes(40)
        if kind == "short" and size == len(request.tuples):
            return
        self.world.redis.rpush(request.reply_queue, sealed)

    @rule(place=places)
    def old_wire(self, place: int) -> None:
        """Bring a worker a request of the version before."""
        for worker in self.workers[place : place + 1]:
            if worker.held:
                chunk, message = worker.held.pop()
                content = msgpack.unpackb(self.world.signer.verify("request", message))
                old = msgpack.packb({**content, "version": VERSION - 1})
                worker.service.handle(chunk, self.world.signer.sign("request", old))

    @rule(link=st.sampled_from(["client", "worker"]), toxic=st.sampled_from([Toxic("reset"), Toxic("latency", 15)]))
    def disturb(self, link: str, toxic: Toxic) -> None:
        self.world.proxies.infect(link, toxic)
        time.sleep(0.03)
        self.world.proxies.infect(link, None)

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.3]))
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @rule()
    def check(self) -> None:
        """Judge the calls that have ended."""
        for call in [call for call in self.calls if call.future.done()]:
            judge(call)

    def teardown(self) -> None:
        for link in ("client", "worker"):
            self.world.proxies.infect(link, None)
        try:
            for call in self.calls:
                judge(call)
        finally:
            self.ended.set()
            self.beating.join()
            self.threads.shutdown()
            self.scorer.close()
            for worker in (*self.workers, *self.dead):
                worker.service.close()
            for key in self.world.redis.scan_iter(f"*{self.name}*"):
                self.world.redis.delete(key)


def judge(call: Call) -> None:
    """Check that a call has the scores of its own documents by one model, or says what it lacks and why."""
    try:
        scores = call.future.result(PATIENCE_S)
    except (WorkerError, ScoringError):  # says why
        return
    kind = scores.identity.removeprefix("known/")
    assert len(scores.values) == len(call.documents)
    for index, (value, text) in enumerate(zip(scores.values, call.documents, strict=True)):
        if np.isnan(value):
            assert index in scores.failures or index >= scores.reached
        else:
            assert value == value_of(kind, call.query, text)


@pytest.mark.slow
def test_each_scoring_call_gets_its_own_scores_or_names_the_missing_ones(world: World) -> None:
    machines.run(lambda: WorkersMachine(world), examples=6, steps=20)
