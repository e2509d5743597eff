"""The workers of a model, registered in Redis, and the clock that clients and workers share.

Every worker keeps its `Heartbeat` under a key that expires unless it is renewed; a set names the workers of a model.
A worker whose key has expired is dead: killed, cut off or hanging. A heartbeat counts only under its own worker's key
and in the set of its own model, and not when it is old: nobody can bring a dead worker back by writing it again.
"""

import hashlib
import time
from typing import Any

from osrerank.errors import PayloadError
from osrerank.scoring.remote.messages import VERSION, Heartbeat
from osrerank.scoring.remote.signing import Signer, count_refusal

BEAT_S = 0.5
"""How often a worker sends its heartbeat."""
DEAD_AFTER_S = 2.0
"""A worker without a heartbeat for this long is dead."""
MOST_AGE_S = DEAD_AFTER_S + 1.0
"""A heartbeat that is older was not written by its worker; the clocks of both sides may be a little apart."""
PREFIX = f"osrerank:{VERSION}:"


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
        signer: signs and checks the heartbeats.

    Attributes:
        clock: the broker's.
        refused: why the last reading left heartbeats out, as a sentence; empty where it left out none.
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
        """Take a worker out of the registry."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.delete(_key(worker.encode()))
        pipeline.srem(self._names, worker)
        pipeline.execute()

    def now_s(self) -> float:
        """Return the server's time; it is asked only where it is not known yet."""
        if not self.clock.is_set:
            self._timed(self._redis.pipeline(transaction=False))
        return self.clock.at(time.monotonic())

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the heartbeats of the live workers that can be trusted, and forget the names of dead ones."""
        self.refused = ""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.smembers(self._names)
        names = sorted(self._timed(pipeline)[0])
        if not names:
            return ()
        found = self._redis.mget([_key(name) for name in names])
        dead = [name for name, heartbeat in zip(names, found, strict=True) if heartbeat is None]
        if dead:
            self._redis.srem(self._names, *dead)
        read = (self._read(name, message) for name, message in zip(names, found, strict=True) if message is not None)
        return tuple(heartbeat for heartbeat in read if heartbeat is not None)

    def _read(self, name: bytes, message: object) -> Heartbeat | None:
        """Return a heartbeat; None, and the reason in `refused`, where it cannot be read or trusted."""
        try:
            heartbeat = Heartbeat.decode(self._signer.open("heartbeat", message))
            self._check(name, heartbeat)
        except PayloadError as error:
            count_refusal("heartbeat", error)
            self.refused = str(error)
            return None
        return heartbeat

    def _check(self, name: bytes, heartbeat: Heartbeat) -> None:
        """Check that a heartbeat stands where its worker writes it, and is new.

        Raises:
            PayloadError: it does not, or is not.
        """
        if heartbeat.worker.encode(errors="surrogatepass") != name:
            raise PayloadError("a heartbeat is of another worker than its key names", reason="misplaced")
        if heartbeat.queue != queue_of(self._model, heartbeat.identity):
            raise PayloadError("a heartbeat is of a worker of another model", reason="misplaced")
        if abs(self.clock.at(time.monotonic()) - heartbeat.sent_s) > MOST_AGE_S:
            raise PayloadError("a heartbeat is too old: a worker, or this process, has hung", reason="expired")

    def _timed(self, pipeline: Any) -> list[Any]:
        """Execute a pipeline and set the clock."""
        pipeline.time()
        asked_at = time.monotonic()
        answers: list[Any]
        *answers, server_time = pipeline.execute()
        self.clock.adjust(server_time, asked_at, time.monotonic())
        return answers


def _key(worker: bytes) -> bytes:
    return f"{PREFIX}worker:".encode() + worker
