"""Cache scores in Redis, within a memory limit.

Redis holds two hashes, the young and the old generation. Scores are written to the young generation. When the young
generation has half of the allowed scores, or half of a score's lifetime has passed, it replaces the old generation. A
score read from the old generation is written again, so scores in use stay, and all others expire. Redis therefore needs
no eviction policy, which would also evict the messages of a broker.
"""

import contextlib
import logging
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import Counter
from redis.exceptions import OutOfMemoryError, ResponseError

from osrerank._pause import Pause
from osrerank._redis import open_redis
from osrerank.scoring.cache.local import CachedScore
from osrerank.scoring.cache.signing import SIGNATURE_BYTES, EntrySigner

PREFIX = b"osrerank:scores:3:"
"""Prefix of the keys in Redis. Its number changes with the format of keys or values."""
YOUNG, OLD = PREFIX + b"young", PREFIX + b"old"
TIMEOUT_S = 0.2
"""Timeout for connecting to Redis, and for its replies, in seconds."""
PAUSE_S = 10.0
"""Time for which Redis is not used after it has failed, in seconds."""
REDIS_ENTRY_BYTES = 110
"""Estimated memory of a score and its key in Redis, in bytes, without a signature."""
ONE_NUMBER = struct.Struct("<f")
"""The format of a value that is only a logit."""
THREE_NUMBERS = struct.Struct("<ffB")
"""The format of a value that is a logit, log-odds and cuts (`CachedScore`)."""
ROTATE_SCRIPT = """
local count = redis.call('HLEN', KEYS[1])
if count == 0 then return 0 end
local left_ms = redis.call('PTTL', KEYS[1])
if left_ms < 0 then -- the generation is new
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left_ms = tonumber(ARGV[2])
end
if count >= tonumber(ARGV[1]) or left_ms < tonumber(ARGV[2]) / 2 then
  redis.call('UNLINK', KEYS[2])
  redis.call('RENAME', KEYS[1], KEYS[2])
  return 1
end
return 0
"""
"""Lua script that makes the young generation the old one if it is large or old enough.

KEYS are the young and the old generation. ARGV are a generation's maximum number of scores, and its lifetime in
milliseconds.
"""

ERRORS = Counter("osrerank_score_cache_errors", "Failed calls of the cache, and values in it that are not scores.")

logger = logging.getLogger(__name__)


class RedisStore:
    """A cache of scores in Redis. A read and a write each take one round trip.

    If Redis fails, no error is raised, and the cache is not used for a while.

    Args:
        redis: a URL, or a client that was created with ``decode_responses=False``.
        ttl_s: lifetime of a score after its last use, in seconds.
        max_bytes: maximum memory of the scores, in bytes.
        pause_s: the time for which Redis is not used after it has failed, in seconds.
        signer: signs scores and verifies their signatures. If None, scores are not signed.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        redis: str | Any,
        *,
        ttl_s: int,
        max_bytes: float,
        pause_s: float = PAUSE_S,
        signer: EntrySigner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signer = signer or EntrySigner()
        self._redis = connect(redis) if isinstance(redis, str) else redis
        self._ttl_s = ttl_s
        entry_bytes = REDIS_ENTRY_BYTES + self._signer.added_bytes
        self._max_generation_entries = max(1, int(max_bytes / 2 / entry_bytes))
        self._pause_s = pause_s
        self._pause = Pause(pause_s, self._report, clock)
        self._write_pause = Pause(pause_s, self._report, clock)  # while Redis is full, it is still read

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, CachedScore], dict[bytes, CachedScore]]:
        """Return the cached scores by key, and those of them that expire unless they are written again."""
        if not keys:
            return {}, {}
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(YOUNG, keys)
        pipeline.hmget(OLD, keys)
        replies = self._pause.attempt(pipeline.execute, None)
        if not _are_valid(replies, len(keys)):
            return {}, {}
        young_scores = _decode_scores(keys, replies[0], self._signer)
        old_scores = _decode_scores(keys, replies[1], self._signer)
        to_renew = {key: value for key, value in old_scores.items() if key not in young_scores}
        return {**young_scores, **to_renew}, to_renew

    def write(self, scores: Mapping[bytes, CachedScore]) -> None:
        """Store scores by key."""
        if not scores:
            return
        pipeline = self._redis.pipeline(transaction=False)
        values = {key: self._signer.sign(key, _encode_score(score)) for key, score in scores.items()}
        pipeline.hset(YOUNG, mapping=values)
        pipeline.eval(ROTATE_SCRIPT, 2, YOUNG, OLD, self._max_generation_entries, self._ttl_s * 1000)
        write = partial(self._pause.attempt, partial(self._execute, pipeline), None)
        self._write_pause.attempt(write, None)

    def close(self) -> None:
        """Close the connections."""
        self._pause.attempt(self._redis.close, None)

    def _execute(self, pipeline: Any) -> None:
        """Execute a write. If Redis is full, pause writes and drop old scores to free memory for its other users."""
        try:
            pipeline.execute()
        except OutOfMemoryError as error:
            self._drop_old_generation()
            self._write_pause.begin(error)

    def _drop_old_generation(self) -> None:
        """Delete the old generation, and make the young generation the old one. A second call deletes these, too."""
        self._redis.unlink(OLD)
        with contextlib.suppress(ResponseError):  # there is no young generation
            self._redis.rename(YOUNG, OLD)

    def _report(self, error: Exception, begins_pause: bool) -> None:  # noqa: FBT001 - `Pause` passes it by position
        ERRORS.inc()
        if begins_pause:
            logger.warning(
                "[cache-away] Redis failed (%s), so no scores are cached for %g s; start Redis, or correct "
                "OSRERANK_REDIS_URL",
                type(error).__name__,
                self._pause_s,
            )


def connect(url: str) -> Any:
    """Return a Redis client with short timeouts. It connects on first use."""
    return open_redis(url, connect_s=TIMEOUT_S, response_s=TIMEOUT_S)


def _are_valid(replies: object, size: int) -> bool:
    """Return whether the replies are a list of two replies to HMGET, each with ``size`` values."""
    return (
        isinstance(replies, list)
        and len(replies) == 2
        and all(isinstance(values, list) and len(values) == size for values in replies)
    )


def _encode_score(value: CachedScore) -> bytes:
    return THREE_NUMBERS.pack(*value) if isinstance(value, tuple) else ONE_NUMBER.pack(value)


def _decode_scores(keys: Sequence[bytes], values: Sequence[object], signer: EntrySigner) -> dict[bytes, CachedScore]:
    """Return the valid scores among the values, by key. Values that are not scores count as errors."""
    scores: dict[bytes, CachedScore] = {}
    layouts: dict[int, struct.Struct] = {}  # length of a value -> format of its numbers
    for layout in (ONE_NUMBER, THREE_NUMBERS):
        layouts[layout.size] = layout
        layouts[layout.size + SIGNATURE_BYTES] = layout
    for key, value in zip(keys, values, strict=True):
        if value is None:
            continue
        if not isinstance(value, bytes) or len(value) not in layouts:
            ERRORS.inc()
            continue
        layout = layouts[len(value)]
        content = signer.verify(key, value, layout.size)
        if content is None:
            continue
        numbers = layout.unpack(content)
        if math.isfinite(sum(numbers)):
            scores[key] = numbers if len(numbers) > 1 else numbers[0]
        else:
            ERRORS.inc()
    return scores
