"""Which workers a client believes, how long searches wait for them, chunks that are lost, and when nobody is left."""

import queue
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from kombu.exceptions import OperationalError

from osrerank.errors import WorkerError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.delivery import GIVE_UP_S, LOST, LOST_AFTER_S, NO_WORKER, Delivery, PendingChunk
from osrerank.scoring.remote.messages import Heartbeat
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_group import FRESH_S, MAX_STALE_S, NO_REPLY, LiveWorkers
from osrerank.scoring.remote.worker_registry import BEAT_S, PREFIX, WorkerRegistry, queue_name
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Advice, Deadline
from tests.waiting import wait_until


def heartbeat(*held: str) -> Heartbeat:
    return Heartbeat("w", "host", "queue", "m", "id", Advice(), True, held, 0.0, 1, 0.0, 0.0)


class Registry:
    """The heartbeats of one worker; ``answers`` may be cleared, as by a broker that falls silent."""

    def __init__(self, *beats: Heartbeat) -> None:
        self.beats: Sequence[Heartbeat] = beats
        self.answers = threading.Event()
        self.answers.set()
        self.reads = 0

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        assert self.answers.wait(30)
        self.reads += 1
        return tuple(self.beats)


def test_the_worker_registry_is_read_once_while_its_answer_is_fresh() -> None:
    clock, registry = ManualClock(), Registry(heartbeat())
    workers: Any = LiveWorkers(registry, "m", clock)  # type: ignore[arg-type]
    for _ in range(5):
        assert workers.find_group().first.worker == "w"
    assert registry.reads == 1
    clock.sleep(FRESH_S)
    workers.find_group()
    workers.close()
    assert registry.reads == 2


def test_a_client_waits_for_the_worker_registry_only_if_it_knows_no_workers() -> None:
    clock, registry = ManualClock(), Registry(heartbeat())
    workers = LiveWorkers(registry, "m", clock)  # type: ignore[arg-type]
    workers.find_group()
    registry.answers.clear()
    clock.sleep(FRESH_S)
    assert workers.find_group(Deadline.after_ms(50)).first.worker == "w"  # as it was known before
    clock.sleep(MAX_STALE_S)
    with pytest.raises(WorkerError, match=NO_REPLY):
        workers.find_group(Deadline.after_ms(50))
    registry.answers.set()
    workers.close()  # waits for the reading that is under way
    assert workers.find_group().first.worker == "w"
    workers.close()


class Queue:
    """Celery and Redis: what was sent, and no reply."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.replies: queue.Queue[bytes] = queue.Queue()

    def send_task(self, _name: str, *, task_id: str, **_options: Any) -> None:
        self.sent.append(task_id)

    def blpop(self, _keys: list[str], timeout: float) -> None:
        with pytest.raises(queue.Empty):
            self.replies.get(timeout=0.001)

    def llen(self, _name: str) -> int:
        return 0


def deliver(beats: Sequence[Heartbeat], broker: Queue, clock: ManualClock, until: Any) -> PendingChunk:
    """Send a chunk, and let half a second pass again and again until something holds."""
    registry = Registry()
    registry.beats = beats
    delivery = Delivery(broker, broker, registry, Signer(), clock)  # type: ignore[arg-type]
    chunk = PendingChunk("c1", "queue", b"request", NEVER)
    call = threading.Thread(target=delivery.deliver, args=([chunk], NEVER))
    call.start()
    wait_until(lambda: broker.sent)
    wait_until(lambda: clock.sleep(BEAT_S) or until(chunk))
    delivery.close()
    call.join(30)
    return chunk


def test_a_broker_that_refuses_a_chunk_is_named_with_its_error() -> None:
    broker = Queue()
    broker.send_task = Mock(side_effect=OperationalError("OOM command not allowed when used memory > 'maxmemory'."))  # type: ignore[method-assign]
    delivery = Delivery(broker, broker, Registry(), Signer())  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match=r"the broker failed \(OOM\): it is full; increase its maxmemory"):
        delivery.deliver([PendingChunk("c1", "queue", b"request", NEVER)], NEVER)
    delivery.close()


def test_a_chunk_that_no_worker_holds_is_sent_again() -> None:
    broker, clock = Queue(), ManualClock()
    began_s = clock()
    chunk = deliver([heartbeat()], broker, clock, lambda chunk: chunk.n_sends == 2)
    assert broker.sent[:2] == ["c1", "c1"]
    assert clock() - began_s >= LOST_AFTER_S
    assert chunk.n_losses == 0  # no worker had it


@pytest.mark.parametrize("held", [(), ("another",)])
def test_a_chunk_is_given_up_once_no_worker_takes_from_its_queue_or_has_chunks_of_it(held: tuple[str, ...]) -> None:
    beats = [replace(heartbeat(*held), taking=False)]
    broker, clock = Queue(), ManualClock()
    until_s = clock() + GIVE_UP_S + 4 * BEAT_S
    chunk = deliver(beats, broker, clock, lambda chunk: chunk.outcome is not None or clock() > until_s)
    assert (chunk.outcome == NO_WORKER) == (not held)


def test_a_chunk_that_a_worker_holds_is_waited_for() -> None:
    broker, clock = Queue(), ManualClock()
    until_s = clock() + 4 * LOST_AFTER_S
    deliver([heartbeat("c1")], broker, clock, lambda _chunk: clock() > until_s)
    assert broker.sent == ["c1"]


def test_a_chunk_is_given_up_after_seconds_without_any_worker() -> None:
    broker, clock = Queue(), ManualClock()
    began_s = clock()
    assert deliver([], broker, clock, lambda chunk: chunk.outcome is not None).outcome == NO_WORKER
    assert clock() - began_s > GIVE_UP_S


def test_a_chunk_with_which_three_workers_died_is_given_up() -> None:
    beats = [heartbeat()]

    def is_given_up(chunk: PendingChunk) -> bool:
        beats[:] = [heartbeat() if chunk.was_held else heartbeat("c1")]  # who takes it dies, and another worker lives
        return chunk.outcome is not None

    broker = Queue()
    chunk = deliver(beats, broker, ManualClock(), is_given_up)
    assert (chunk.outcome, chunk.n_losses, broker.sent) == (LOST, 3, ["c1"] * 3)


SIGNER, FORGER = Signer([b"the-key-of-both-sides"]), Signer([b"the-key-of-an-attacker"])


class Written:
    """A registry in a model's name of its own, and ways to write to it."""

    def __init__(self, redis, signer: Signer) -> None:
        self.redis, self.model = redis, f"model-{secrets.token_hex(4)}"
        self.registry = WorkerRegistry(redis, self.model, signer)

    def heartbeat(self, worker: str = "w1", **changed: object) -> Heartbeat:
        queue, now_s = queue_name(self.model, "id/int8"), self.registry.now_s()
        whole = Heartbeat(worker, "host", queue, self.model, "id/int8", Advice(), True, (), 0.0, 4, 0.0, now_s)
        return replace(whole, **changed)

    def write(self, name: bytes, message: bytes) -> None:
        self.redis.set(f"{PREFIX}worker:".encode() + name, message)
        self.redis.sadd(f"{PREFIX}workers:{self.model}", name)

    def refused(self, reason: str) -> float:
        return MESSAGES_REFUSED.labels("heartbeat", reason)._value.get()


@pytest.fixture
def registry(redis_url: str) -> Iterator[Written]:
    with connect(redis_url) as redis:
        yield Written(redis, SIGNER)


def test_a_signed_heartbeat_is_believed(registry):
    registry.registry.renew(registry.heartbeat("wörker"))
    assert [heartbeat.worker for heartbeat in registry.registry.heartbeats()] == ["wörker"]
    assert registry.registry.refusal == ""
    registry.registry.remove("wörker")
    assert registry.registry.heartbeats() == ()


@pytest.mark.parametrize(
    ("signer", "changed", "reason"),
    [
        (Signer(), {}, "unsigned"),
        (FORGER, {}, "wrong_key"),
        (SIGNER, {"sent_s": 1.0}, "expired"),  # a dead worker's, kept and written again
        (SIGNER, {"worker": "w2"}, "misplaced"),  # another worker's, under this key
        (SIGNER, {"queue": queue_name("other", "id/int8")}, "misplaced"),  # of another model's worker
    ],
)
def test_a_forged_or_copied_heartbeat_is_refused_and_named(registry, signer, changed, reason):
    before = registry.refused(reason)
    registry.write(b"w1", signer.sign("heartbeat", registry.heartbeat(**changed).encode()))
    assert registry.registry.heartbeats() == ()
    assert registry.refused(reason) == before + 1
    assert registry.registry.refusal


def test_a_client_says_why_it_trusts_no_worker(registry, redis_url):
    registry.write(b"w1", registry.heartbeat().encode())
    scorer = RemoteScorer(redis_url, registry.model, queue_chunks=4, signer=SIGNER)
    with pytest.raises(WorkerError, match="messages that are accepted: a message is not signed"):
        scorer.score("q", ["d"], [(0,)])
    scorer.close()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"\x00", "\ud800".encode(errors="surrogatepass")])
def test_a_worker_name_of_arbitrary_bytes_hides_no_other_worker(registry, name):
    registry.registry.renew(registry.heartbeat())
    registry.write(name, b"\xc1 nonsense")
    assert [heartbeat.worker for heartbeat in registry.registry.heartbeats()] == ["w1"]
    registry.redis.delete(f"{PREFIX}worker:".encode() + name)
    assert [heartbeat.worker for heartbeat in registry.registry.heartbeats()] == ["w1"]
    assert registry.redis.scard(f"{PREFIX}workers:{registry.model}") == 1
