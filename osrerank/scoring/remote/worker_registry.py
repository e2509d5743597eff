"""The workers of a model, registered in Redis, and the clock that clients and workers share.

Every worker keeps its `Heartbeat` under a key that expires unless it is renewed; a set names the workers of a model.
A worker whose key has expired is dead: killed, cut off or hanging.
"""

import hashlib
import time
from typing import Any

from osrerank.errors import PayloadError
from osrerank.scoring.remote.messages import Heartbeat

BEAT_S = 0.5
"""How often a worker sends its heartbeat."""
DEAD_AFTER_S = 2.0
"""A worker without a heartbeat for this long is dead."""
PREFIX = "osrerank:"


def queue_of(model: str, identity: str) -> str:
    """Return the name of a model's queue; the identity in it keeps versions apart."""
    return f"{PREFIX}queue:{model}:{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"


class BrokerClock:
    """The time of the Redis server, so that the hosts' clocks need not agree.

    Every exchange of heartbeats measures its difference to this process' monotonic clock, with an error of at most half
    a round trip, and of the drift since.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0
        self.is_set = False

    def adjust(self, answer: tuple[int, int], asked_at: float, answered_at: float) -> None:
        """Set the clock by the server's ``TIME``: seconds and microseconds; asked and answered on our clock."""
        seconds, microseconds = answer
        self._offset_s = seconds + microseconds / 1e6 - (asked_at + answered_at) / 2
        self.is_set = True

    def at(self, monotonic_s: float) -> float:
        """Return the server's time at a point of this process' monotonic clock."""
        return monotonic_s + self._offset_s

    def local(self, server_s: float) -> float:
        """Return the point of this process' monotonic clock at a time of the server."""
        return server_s - self._offset_s


class WorkerRegistry:
    """The registered workers of one model.

    Args:
        redis: a client made with ``decode_responses=False``; its errors pass through.
        model: the name under which workers and clients meet.
    """

    def __init__(self, redis: Any, model: str) -> None:
        self.clock = BrokerClock()
        self._redis = redis
        self._names = f"{PREFIX}workers:{model}"

    def renew(self, heartbeat: Heartbeat) -> None:
        """Store a worker's heartbeat."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(_key(heartbeat.worker), heartbeat.encode(), px=int(DEAD_AFTER_S * 1000))
        pipeline.sadd(self._names, heartbeat.worker)
        self._timed(pipeline)

    def remove(self, worker: str) -> None:
        """Take a worker out of the registry."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.delete(_key(worker))
        pipeline.srem(self._names, worker)
        pipeline.execute()

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the heartbeats of the live workers, and forget the names of the others."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.smembers(self._names)
        names = sorted(self._timed(pipeline)[0])
        if not names:
            return ()
        found = self._redis.mget([_key(name.decode()) for name in names])
        dead = [name for name, heartbeat in zip(names, found, strict=True) if heartbeat is None]
        if dead:
            self._redis.srem(self._names, *dead)
        return tuple(heartbeat for message in found if (heartbeat := _readable(message)) is not None)

    def _timed(self, pipeline: Any) -> list[Any]:
        """Execute a pipeline and set the clock."""
        pipeline.time()
        asked_at = time.monotonic()
        answers: list[Any]
        *answers, server_time = pipeline.execute()
        self.clock.adjust(server_time, asked_at, time.monotonic())
        return answers


def _key(worker: str) -> str:
    return f"{PREFIX}worker:{worker}"


def _readable(message: object) -> Heartbeat | None:
    """Return a heartbeat; None where the key has expired or another version of osrerank wrote it."""
    try:
        return None if message is None else Heartbeat.decode(message)
    except PayloadError:
        return None
