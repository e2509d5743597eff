"""Register the workers of a model in Redis, and convert times to the clock that clients and workers share.

A Redis set lists the workers of a model. Each worker writes its `Heartbeat` to a key that expires unless it is renewed.
A worker whose key has expired is dead: it was killed, hangs, or has lost its connection. A heartbeat is valid only
under the key of its worker, in the set of its model, and while it is recent, so nobody can revive a dead worker with a
recorded heartbeat.
"""

import hashlib
import time
from typing import Any

from osrerank.errors import PayloadError
from osrerank.scoring.remote.messages import VERSION, Heartbeat
from osrerank.scoring.remote.signing import Signer, count_refusal

BEAT_S = 0.5
"""The interval between a worker's heartbeats, in seconds."""
DEAD_AFTER_S = 2.0
"""Time after which the key of a heartbeat expires, in seconds. A worker without a key is dead."""
MAX_AGE_S = DEAD_AFTER_S + 1.0
"""Maximum age of a heartbeat, in seconds. Clocks may differ by a second."""
PREFIX = f"osrerank:{VERSION}:"
"""Prefix of the keys and queues in Redis."""


def queue_name(model: str, identity: str) -> str:
    """Return the name of a model's queue. It contains a digest of the identity, so two versions have two queues."""
    return f"{PREFIX}queue:{model}:{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"


class BrokerClock:
    """Converts between this process' monotonic clock and the broker's clock, which all clients and workers use.

    The offset is measured whenever the registry is read or written. Its error is at most half a round trip, plus the
    drift since the measurement.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0
        self.is_set = False

    def adjust(self, reply: tuple[int, int], sent_at_s: float, received_at_s: float) -> None:
        """Set the offset from the reply of the broker, a Redis server.

        Args:
            reply: the reply to ``TIME``: seconds and microseconds.
            sent_at_s: the time before the call, by the monotonic clock.
            received_at_s: the time after the call, by the monotonic clock.
        """
        seconds, microseconds = reply
        self._offset_s = seconds + microseconds / 1e6 - (sent_at_s + received_at_s) / 2
        self.is_set = True

    def to_broker(self, monotonic_s: float) -> float:
        """Convert a time of the monotonic clock to the broker's clock, in seconds."""
        return monotonic_s + self._offset_s

    def to_local(self, broker_s: float) -> float:
        """Convert a time of the broker's clock to the monotonic clock, in seconds."""
        return broker_s - self._offset_s


class WorkerRegistry:
    """The registered workers of one model.

    Args:
        redis: a client that was created with ``decode_responses=False``. Its errors are not caught.
        model: the model's name, which clients and workers share.
        signer: signs and verifies heartbeats.

    Attributes:
        clock: the broker's clock.
        refusal: why the latest call of `heartbeats` refused a heartbeat, or "" if it accepted all of them.
    """

    def __init__(self, redis: Any, model: str, signer: Signer) -> None:
        self.clock = BrokerClock()
        self.refusal = ""
        self._redis = redis
        self._model = model
        self._signer = signer
        self._workers_key = f"{PREFIX}workers:{model}"

    def renew(self, heartbeat: Heartbeat) -> None:
        """Store a worker's heartbeat."""
        pipeline = self._redis.pipeline(transaction=False)
        message = self._signer.sign("heartbeat", heartbeat.encode())
        pipeline.set(_key(heartbeat.worker.encode()), message, px=int(DEAD_AFTER_S * 1000))
        pipeline.sadd(self._workers_key, heartbeat.worker)
        self._execute(pipeline)

    def remove(self, worker: str) -> None:
        """Remove a worker from the registry."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.delete(_key(worker.encode()))
        pipeline.srem(self._workers_key, worker)
        pipeline.execute()

    def now_s(self) -> float:
        """Return the broker's time, in seconds. Only the first call sends a request."""
        if not self.clock.is_set:
            self._execute(self._redis.pipeline(transaction=False))  # sets the clock
        return self.clock.to_broker(time.monotonic())

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the valid heartbeats of live workers, and remove the names of dead ones from the registry."""
        self.refusal = ""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.smembers(self._workers_key)
        names = sorted(self._execute(pipeline)[0])
        if not names:
            return ()
        messages = self._redis.mget([_key(name) for name in names])
        dead_names = [name for name, message in zip(names, messages, strict=True) if message is None]
        if dead_names:
            self._redis.srem(self._workers_key, *dead_names)
        heartbeats = []
        for name, message in zip(names, messages, strict=True):
            heartbeat = None if message is None else self._decode(name, message)
            if heartbeat is not None:
                heartbeats.append(heartbeat)
        return tuple(heartbeats)

    def _decode(self, name: bytes, message: object) -> Heartbeat | None:
        """Return the heartbeat in a message. If it is invalid, set `refusal` and return None."""
        try:
            heartbeat = Heartbeat.decode(self._signer.verify("heartbeat", message))
            self._check(name, heartbeat)
        except PayloadError as error:
            count_refusal("heartbeat", error)
            self.refusal = str(error)
            return None
        return heartbeat

    def _check(self, name: bytes, heartbeat: Heartbeat) -> None:
        """Raise `PayloadError` unless a heartbeat is under its worker's key, in the set of its model, and recent."""
        if heartbeat.worker.encode(errors="surrogatepass") != name:
            raise PayloadError("a heartbeat is stored under the name of another worker", reason="misplaced")
        if heartbeat.queue != queue_name(self._model, heartbeat.identity):
            raise PayloadError("a heartbeat is from a worker of another model", reason="misplaced")
        if abs(self.clock.to_broker(time.monotonic()) - heartbeat.sent_s) > MAX_AGE_S:
            raise PayloadError("a heartbeat is too old; the worker or this process may have hung", reason="expired")

    def _execute(self, pipeline: Any) -> list[Any]:
        """Execute a pipeline, adjust the clock, and return the replies."""
        pipeline.time()
        sent_at_s = time.monotonic()
        replies: list[Any]
        *replies, server_time = pipeline.execute()
        self.clock.adjust(server_time, sent_at_s, time.monotonic())
        return replies


def _key(worker: bytes) -> bytes:
    """Return the key of a worker's heartbeat, such as ``osrerank:6:worker:host:12:9f3a01c2``."""
    return f"{PREFIX}worker:".encode() + worker
