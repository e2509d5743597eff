"""Which heartbeats a client believes, on a real Redis."""

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from osrerank.errors import WorkerError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.remote import worker_registry
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.messages import VERSION, Heartbeat
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import PREFIX, WorkerRegistry, queue_of
from osrerank.types import Advice

SIGNER, FORGER = Signer([b"the-key-of-both-sides"]), Signer([b"the-key-of-an-attacker"])


class Written:
    """A registry in a model's name of its own, and ways to write to it."""

    def __init__(self, redis, signer: Signer) -> None:
        self.redis, self.model = redis, f"model-{secrets.token_hex(4)}"
        self.registry = WorkerRegistry(redis, self.model, signer)

    def heartbeat(self, worker: str = "w1", **changed: object) -> Heartbeat:
        queue, now_s = queue_of(self.model, "id/int8"), self.registry.now_s()
        whole = Heartbeat(worker, "host", queue, self.model, "id/int8", Advice(), True, (), 0.0, 4, 0.0, now_s)
        return replace(whole, **changed)

    def write(self, name: bytes, message: bytes) -> None:
        self.redis.set(f"{PREFIX}worker:".encode() + name, message)
        self.redis.sadd(f"{PREFIX}workers:{self.model}", name)

    def refused(self, reason: str) -> float:
        return MESSAGES_REFUSED.labels("heartbeat", reason)._value.get()


@pytest.fixture
def written(redis_url: str) -> Iterator[Written]:
    with connect(redis_url) as redis:
        yield Written(redis, SIGNER)


def test_a_signed_heartbeat_is_believed(written):
    written.registry.renew(written.heartbeat("wörker"))
    assert [one.worker for one in written.registry.heartbeats()] == ["wörker"]
    assert written.registry.refused == ""
    written.registry.remove("wörker")
    assert written.registry.heartbeats() == ()


@pytest.mark.parametrize(
    ("signer", "changed", "reason"),
    [
        (Signer(), {}, "unsigned"),
        (FORGER, {}, "wrong_key"),
        (SIGNER, {"sent_s": 1.0}, "expired"),  # a dead worker's, kept and written again
        (SIGNER, {"worker": "w2"}, "misplaced"),  # another worker's, under this key
        (SIGNER, {"queue": queue_of("other", "id/int8")}, "misplaced"),  # of another model's worker
    ],
)
def test_a_forged_or_copied_heartbeat_is_refused_and_named(written, signer, changed, reason):
    before = written.refused(reason)
    written.write(b"w1", signer.seal("heartbeat", written.heartbeat(**changed).encode()))
    assert written.registry.heartbeats() == ()
    assert written.refused(reason) == before + 1
    assert written.registry.refused


def test_a_client_says_why_it_trusts_no_worker(written, redis_url):
    written.write(b"w1", written.heartbeat().encode())
    scorer = RemoteScorer(redis_url, written.model, queue_chunks=4, signer=SIGNER)
    with pytest.raises(WorkerError, match="can be trusted: a message is not signed"):
        scorer.score("q", ["d"], [(0,)])
    scorer.close()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"\x00", "\ud800".encode(errors="surrogatepass")])
def test_a_name_of_any_bytes_hides_no_worker(written, name):
    written.registry.renew(written.heartbeat())
    written.write(name, b"\xc1 nonsense")
    assert [one.worker for one in written.registry.heartbeats()] == ["w1"]
    written.redis.delete(f"{PREFIX}worker:".encode() + name)
    assert [one.worker for one in written.registry.heartbeats()] == ["w1"]
    assert written.redis.scard(f"{PREFIX}workers:{written.model}") == 1


def test_versions_of_the_messages_do_not_meet(written, monkeypatch):
    """An older or newer osrerank on the same broker has other keys and queues for the same model."""
    written.registry.renew(written.heartbeat())
    monkeypatch.setattr(worker_registry, "PREFIX", f"osrerank:{VERSION + 1}:")
    later = WorkerRegistry(written.redis, written.model, SIGNER)
    assert later.heartbeats() == ()
    assert queue_of(written.model, "id") != f"{PREFIX}queue:{written.model}"
    assert queue_of(written.model, "id").startswith(f"osrerank:{VERSION + 1}:")
