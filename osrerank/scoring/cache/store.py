"""Keep scores in Redis, within a bounded memory.

Redis holds two hashes, the young and the old generation. Scores are written to the young one. When it has half of the
entries allowed, or is half as old as scores may get, the old one is dropped, and the young one becomes the old one. A
score that is found in the old one is written again. So scores in use stay, all others expire, and the bound holds
without an eviction policy of the server, which a broker must not have.
"""

import logging
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import Counter
from redis.exceptions import OutOfMemoryError, ResponseError

from osrerank._pause import Pause
from osrerank._redis import open_redis
from osrerank.scoring.cache.local import Kept
from osrerank.scoring.cache.signing import SIGNATURE_BYTES, EntrySigner

PREFIX = b"osrerank:scores:3:"
"""Prefix of the keys in Redis; its number changes with the form of keys or values."""
YOUNG, OLD = PREFIX + b"young", PREFIX + b"old"
TIMEOUT_S = 0.2
"""How long Redis may take to connect, and to answer, in seconds."""
REST_S = 10.0
"""How long Redis is not called after a failure, in seconds."""
REMOTE_ENTRY_BYTES = 110
"""Memory of a score with its key, in bytes."""
VALUE = struct.Struct("<f")
WITH_MORE = struct.Struct("<ffB")
TURN = """
local count = redis.call('HLEN', KEYS[1])
if count == 0 then return 0 end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
if count >= tonumber(ARGV[1]) or left < tonumber(ARGV[2]) / 2 then
  redis.call('UNLINK', KEYS[2])
  redis.call('RENAME', KEYS[1], KEYS[2])
  return 1
end
return 0
"""
"""Lets the young generation become the old one when it is large or old enough."""

ERRORS = Counter("osrerank_score_cache_errors", "Failed calls of the cache, and values in it that are not scores.")

logger = logging.getLogger(__name__)


class RemoteStore:
    """A cache of scores in Redis: one round trip to read, one to write. A missing, slow or full Redis only costs time.

    Args:
        redis: a URL, or a client made with ``decode_responses=False``.
        ttl_s: the longest time that a score is kept after it was last asked for, in seconds.
        most_bytes: memory that scores may take, in bytes.
        rest_s: how long Redis is not called after a failure, in seconds.
        signer: signs the scores and checks their signatures; None for scores without signatures.
        clock: returns seconds.
    """

    def __init__(
        self,
        redis: str | Any,
        *,
        ttl_s: int,
        most_bytes: float,
        rest_s: float = REST_S,
        signer: EntrySigner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signer = signer or EntrySigner()
        self._redis = connect(redis) if isinstance(redis, str) else redis
        self._ttl_s = ttl_s
        self._most = max(1, int(most_bytes / 2 / (REMOTE_ENTRY_BYTES + self._signer.added_bytes)))
        self._rest_s = rest_s
        self._calls, self._writes = (Pause(rest_s, self._report, clock) for _ in range(2))

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:
        """Return the cached scores by key, and those among them that must be written again to stay."""
        if not keys:
            return {}, {}
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(YOUNG, keys)
        pipeline.hmget(OLD, keys)
        answer = self._calls.attempt(pipeline.execute, None)
        if not _fits(answer, len(keys)):
            return {}, {}
        young, old = (_decoded(keys, found, self._signer) for found in answer or ())
        fading = {key: value for key, value in old.items() if key not in young}
        return {**young, **fading}, fading

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        """Store scores by key."""
        if not scores:
            return
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hset(YOUNG, mapping={key: self._signer.seal(key, _packed(value)) for key, value in scores.items()})
        pipeline.eval(TURN, 2, YOUNG, OLD, self._most, self._ttl_s * 1000)
        self._writes.attempt(lambda: self._calls.attempt(lambda: self._execute(pipeline), None), None)

    def close(self) -> None:
        """Close the connections."""
        self._calls.attempt(self._redis.close, None)

    def _execute(self, pipeline: Any) -> None:
        """Execute a write; if Redis is full, free the memory of old scores, because other users need it more."""
        try:
            pipeline.execute()
        except OutOfMemoryError as error:
            self._give_back()
            self._writes.begin(error)

    def _give_back(self) -> None:
        """Drop the old generation, and make the young one the old one, to be dropped the next time."""
        self._redis.unlink(OLD)
        try:
            self._redis.rename(YOUNG, OLD)
        except ResponseError:  # there is no young one
            return

    def _report(self, error: Exception, is_first: bool) -> None:  # noqa: FBT001 - as `Pause` gives it
        ERRORS.inc()
        if is_first:
            logger.warning(
                "[cache-away] the score cache failed and is paused for %g s: %s", self._rest_s, type(error).__name__
            )


def connect(url: str) -> Any:
    """Return a Redis client with short timeouts; it connects on first use."""
    return open_redis(url, connect_s=TIMEOUT_S, answer_s=TIMEOUT_S)


def _fits(answer: object, size: int) -> bool:
    """Return whether an answer has the form of two HMGET replies."""
    return (
        isinstance(answer, list)
        and len(answer) == 2
        and all(isinstance(found, list) and len(found) == size for found in answer)
    )


def _packed(value: Kept) -> bytes:
    return WITH_MORE.pack(*value) if isinstance(value, tuple) else VALUE.pack(value)


def _decoded(keys: Sequence[bytes], found: Sequence[object], signer: EntrySigner) -> dict[bytes, Kept]:
    """Return the valid scores among the values found, by key; values that are not scores are counted as errors."""
    scores: dict[bytes, Kept] = {}
    forms = {form.size + added: form for form in (VALUE, WITH_MORE) for added in (0, SIGNATURE_BYTES)}
    for key, value in zip(keys, found, strict=True):
        if value is None:
            continue
        if isinstance(value, bytes) and (form := forms.get(len(value))) is not None:
            opened = signer.open(key, value, form.size)
            if opened is None:
                continue
            score, *more = form.unpack(opened)
            if math.isfinite(sum((score, *more))):
                scores[key] = (score, *more) if more else score
                continue
        ERRORS.inc()
    return scores
