"""The workers of a model, registered in Redis, and the clock that clients and workers share.

Every worker writes its `Heartbeat` to a key that expires unless the worker renews it. A set names the workers of a
model. A worker whose key has expired is dead: it was killed, hangs, or has lost its connection. A heartbeat is valid
only under its worker's own key, in the set of its model, and while it is recent. So an old heartbeat that somebody
writes again does not revive a dead worker.
"""

import hashlib
import time
from typing import Any

from osrerank.errors import PayloadError
from osrerank.scoring.remote.messages import VERSION, Heartbeat
from osrerank.scoring.remote.signing import Signer, count_refusal

BEAT_S = 0.5
"""Interval between two heartbeats of a worker, in seconds."""
DEAD_AFTER_S = 2.0
"""Seconds without a heartbeat after which a worker is dead."""
MAX_AGE_S = DEAD_AFTER_S + 1.0
"""Age up to which a heartbeat is valid, in seconds; one second more than its key lives, for differences of clocks."""
PREFIX = f"osrerank:{VERSION}:"


def queue_of(model: str, identity: str) -> str:
    """Return the name of a model's queue; it contains a digest of the identity, so each version has its own queue."""
    return f"{PREFIX}queue:{model}:{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"


class BrokerClock:
    """Converts times to the Redis server's clock, so that the clocks of clients and workers need not agree.

    Whenever the registry is read or written, the offset from this process' monotonic clock is measured. The error is at
    most half a round trip, plus the drift since then.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0
        self.is_set = False

    def adjust(self, reply: tuple[int, int], asked_at: float, replied_at: float) -> None:
        """Set the clock by a reply of the server.

        Args:
            reply: the reply to ``TIME``: seconds and microseconds.
            asked_at: the time before the call, by this process' monotonic clock.
            replied_at: the time after the call, by the same clock.
        """
        seconds, microseconds = reply
        self._offset_s = seconds + microseconds / 1e6 - (asked_at + replied_at) / 2
        self.is_set = True

    def to_server(self, monotonic_s: float) -> float:
        """Convert a time of this process' monotonic clock to the server's time, in seconds."""
        return monotonic_s + self._offset_s

    def to_local(self, server_s: float) -> float:
        """Convert a time of the server to this process' monotonic clock, in seconds."""
        return server_s - self._offset_s


class WorkerRegistry:
    """The registered workers of one model.

    Args:
        redis: a client made with ``decode_responses=False``; its errors pass through.
        model: the model's name, which clients and workers share.
        signer: signs and checks the heartbeats.

    Attributes:
        clock: the broker's clock.
        refused: why `heartbeats` last refused a heartbeat, as a sentence; empty if it accepted all.
    """

    def __init__(self, redis: Any, model: str, signer: Signer) -> None:
        self.clock = BrokerClock()
        self.refused = ""
        self._redis = redis
        self._model = model
        self._signer = signer
        self._names = f"{PREFIX}workers:{model}"

    def renew(self, heartbeat: Heartbeat) -> None:
        """Store a worker's heartbeat."""
        pipeline = self._redis.pipeline(transaction=False)
        message = self._signer.seal("heartbeat", heartbeat.encode())
        pipeline.set(_key(heartbeat.worker.encode()), message, px=int(DEAD_AFTER_S * 1000))
        pipeline.sadd(self._names, heartbeat.worker)
        self._timed(pipeline)

    def remove(self, worker: str) -> None:
        """Remove a worker from the registry."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.delete(_key(worker.encode()))
        pipeline.srem(self._names, worker)
        pipeline.execute()

    def now_s(self) -> float:
        """Return the server's time, in seconds; ask the server only the first time."""
        if not self.clock.is_set:
            self._timed(self._redis.pipeline(transaction=False))
        return self.clock.to_server(time.monotonic())

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the valid heartbeats of live workers, and remove the names of dead ones from the registry."""
        self.refused = ""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.smembers(self._names)
        names = sorted(self._timed(pipeline)[0])
        if not names:
            return ()
        messages = self._redis.mget([_key(name) for name in names])
        dead = [name for name, heartbeat in zip(names, messages, strict=True) if heartbeat is None]
        if dead:
            self._redis.srem(self._names, *dead)
        decoded = (
            self._read(name, message) for name, message in zip(names, messages, strict=True) if message is not None
        )
        return tuple(heartbeat for heartbeat in decoded if heartbeat is not None)

    def _read(self, name: bytes, message: object) -> Heartbeat | None:
        """Return a valid heartbeat; otherwise set `refused` to the reason and return None."""
        try:
            heartbeat = Heartbeat.decode(self._signer.open("heartbeat", message))
            self._check(name, heartbeat)
        except PayloadError as error:
            count_refusal("heartbeat", error)
            self.refused = str(error)
            return None
        return heartbeat

    def _check(self, name: bytes, heartbeat: Heartbeat) -> None:
        """Check that a heartbeat is under its worker's own key, in the set of its model, and recent.

        Raises:
            PayloadError: the heartbeat fails one of the checks.
        """
        if heartbeat.worker.encode(errors="surrogatepass") != name:
            raise PayloadError("a heartbeat names another worker than its key", reason="misplaced")
        if heartbeat.queue != queue_of(self._model, heartbeat.identity):
            raise PayloadError("a heartbeat comes from a worker of another model", reason="misplaced")
        if abs(self.clock.to_server(time.monotonic()) - heartbeat.sent_s) > MAX_AGE_S:
            raise PayloadError("a heartbeat is too old: a worker, or this process, has hung", reason="expired")

    def _timed(self, pipeline: Any) -> list[Any]:
        """Execute a pipeline, set the clock by the server's time, and return the pipeline's replies."""
        pipeline.time()
        asked_at = time.monotonic()
        replies: list[Any]
        *replies, server_time = pipeline.execute()
        self.clock.adjust(server_time, asked_at, time.monotonic())
        return replies


def _key(worker: bytes) -> bytes:
    return f"{PREFIX}worker:".encode() + worker
