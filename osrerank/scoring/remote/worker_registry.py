"""Which workers there are, as they say themselves in Redis, and the clock that all of them share.

Every worker keeps one key with its `WorkerCard` that expires unless it is renewed; a set names the workers of a model.
A worker whose key has expired is dead: killed, cut off or hanging.
"""

import hashlib
import time
from typing import Any

from osrerank.errors import PayloadError
from osrerank.scoring.remote.messages import WorkerCard

BEAT_S = 0.5
"""How often a worker renews its card."""
DEAD_AFTER_S = 2.0
"""A card that was not renewed for so long is gone."""
PREFIX = "osrerank:"


def queue_of(model: str, identity: str) -> str:
    """Return the name of the queue of a model: its name for people, its identity so that versions never mix."""
    return f"{PREFIX}queue:{model}:{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"


class BrokerClock:
    """The time of the Redis server, so that hosts need not agree on theirs.

    The difference to this process' monotonic clock is taken at every exchange of cards; it is off by half a round trip
    at most, and by what the two clocks drift apart between exchanges.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0
        self.is_set = False

    def adjust(self, answer: tuple[int, int], asked_at: float, answered_at: float) -> None:
        """Take the server's ``TIME`` into account: seconds and microseconds, asked and answered on our clock."""
        seconds, microseconds = answer
        self._offset_s = seconds + microseconds / 1e6 - (asked_at + answered_at) / 2
        self.is_set = True

    def at(self, monotonic_s: float) -> float:
        """Return the server's time at a point of this process' monotonic clock."""
        return monotonic_s + self._offset_s

    def local(self, server_s: float) -> float:
        """Return the point of this process' monotonic clock at a time of the server."""
        return server_s - self._offset_s


class Roster:
    """The workers of one model.

    Args:
        redis: a client made with ``decode_responses=False``; its errors pass through.
        model: the name under which workers and clients meet.
    """

    def __init__(self, redis: Any, model: str) -> None:
        self.clock = BrokerClock()
        self._redis = redis
        self._names = f"{PREFIX}workers:{model}"

    def renew(self, card: WorkerCard) -> None:
        """Say that a worker lives."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(_key(card.worker), card.encode(), px=int(DEAD_AFTER_S * 1000))
        pipeline.sadd(self._names, card.worker)
        self._timed(pipeline)

    def leave(self, worker: str) -> None:
        """Say that a worker is gone."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.delete(_key(worker))
        pipeline.srem(self._names, worker)
        pipeline.execute()

    def cards(self) -> tuple[WorkerCard, ...]:
        """Return the cards of the workers that live; the names of others are forgotten."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.smembers(self._names)
        names = sorted(self._timed(pipeline)[0])
        if not names:
            return ()
        found = self._redis.mget([_key(name.decode()) for name in names])
        dead = [name for name, card in zip(names, found, strict=True) if card is None]
        if dead:
            self._redis.srem(self._names, *dead)
        return tuple(card for message in found if (card := _readable(message)) is not None)

    def _timed(self, pipeline: Any) -> list[Any]:
        """Execute a pipeline and set the clock by the way."""
        pipeline.time()
        asked_at = time.monotonic()
        answers: list[Any]
        *answers, server_time = pipeline.execute()
        self.clock.adjust(server_time, asked_at, time.monotonic())
        return answers


def _key(worker: str) -> str:
    return f"{PREFIX}worker:{worker}"


def _readable(message: object) -> WorkerCard | None:
    """Return a card, None for one of another version of osrerank or none at all: that worker is not for us."""
    try:
        return None if message is None else WorkerCard.decode(message)
    except PayloadError:
        return None
