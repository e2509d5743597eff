"""Keep scores in Redis, so that a pair is computed once; a cache that is absent or slow costs time only."""

import hashlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from prometheus_client import Counter

from osrerank.types import NEVER, Deadline, Scorer, Scores

PREFIX = b"osrerank:score:1:"
"""Changes with the form of keys or values."""
TIMEOUT_S = 0.2
REST_S = 10.0
"""After a failure Redis is left alone for this long."""
VALUE = struct.Struct("<f")

HITS = Counter("osrerank_score_cache_hits", "Scores that were read from the cache.")
MISSES = Counter("osrerank_score_cache_misses", "Scores that were asked of the cache and not there.")
ERRORS = Counter("osrerank_score_cache_errors", "Calls of the cache that failed, and values in it that are no scores.")

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class CachedScorer:
    """A scorer that asks Redis first and tells it afterwards: one MGET and one pipeline of SET a call.

    Args:
        scorer: computes what is not cached.
        redis: a URL, or a client made with ``decode_responses=False``.
        ttl_s: how long a score lives, in seconds.
        rest_s: how long Redis is left alone after a failure, in seconds.
    """

    def __init__(self, scorer: Scorer, redis: str | Any, *, ttl_s: int, rest_s: float = REST_S) -> None:
        self._scorer = scorer
        self._redis = connect(redis) if isinstance(redis, str) else redis
        self._ttl_s = ttl_s
        self._breaker = Breaker(rest_s)

    @property
    def model(self) -> str:
        return self._scorer.model

    @property
    def identity(self) -> str:
        return self._scorer.identity

    @property
    def first_pass_weight(self) -> float:
        return self._scorer.first_pass_weight

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        keys = score_keys(self._scorer.identity, query, documents, tuples)
        values = self._read(keys)
        absent = [index for index, value in enumerate(values) if np.isnan(value)]
        if not absent:
            return Scores(values, cached=len(values))
        fresh = self._scorer.score(query, documents, [tuples[index] for index in absent], deadline=deadline)
        values[absent] = fresh.values
        self._write((keys[index], values[index]) for index in absent if np.isfinite(values[index]))
        return _merged(values, absent, fresh)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self._scorer.probabilities(logits)

    def close(self) -> None:
        self._scorer.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections to Redis, and leave the scorer as it is."""
        self._breaker.attempt(self._redis.close)

    def _read(self, keys: Sequence[bytes]) -> npt.NDArray[np.float32]:
        """Return the cached scores, NaN where there is none."""
        values = np.full(len(keys), np.nan, dtype=np.float32)
        if not keys:
            return values
        answer = self._breaker.attempt(lambda: self._redis.mget(keys))
        if not isinstance(answer, list) or len(answer) != len(keys):
            return values
        for index, found in enumerate(answer):
            if found is not None:
                values[index] = _decoded(found)
        hits = int(np.isfinite(values).sum())
        HITS.inc(hits)
        MISSES.inc(len(keys) - hits)
        return values

    def _write(self, scores: Iterable[tuple[bytes, float]]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for key, value in scores:
            pipeline.set(key, VALUE.pack(value), ex=self._ttl_s)
        self._breaker.attempt(pipeline.execute)


class Breaker:
    """Calls a service that may fail, and leaves it alone for a while after it did.

    Args:
        rest_s: for how long, in seconds.
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._closed_until = 0.0
        self._lock = threading.Lock()

    def attempt(self, call: Callable[[], Answer]) -> Answer | None:
        """Return the call's answer, or None when it failed or the service is being left alone."""
        if time.monotonic() < self._closed_until:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - whatever a cache does wrong, the search goes on
            self._open(error)
            return None

    def _open(self, error: Exception) -> None:
        """Count the failure, and log the first of those that calls at the same time met."""
        ERRORS.inc()
        with self._lock:
            was_open = time.monotonic() < self._closed_until
            self._closed_until = time.monotonic() + self._rest_s
        if not was_open:
            logger.warning("the score cache failed and is left alone for %g s: %s", self._rest_s, type(error).__name__)


def connect(url: str) -> Any:
    """Return a Redis client that gives up soon and does not try twice; no connection is made yet."""
    from redis import Redis  # noqa: PLC0415 - only where a cache is configured
    from redis.backoff import NoBackoff  # noqa: PLC0415 - see above
    from redis.retry import Retry  # noqa: PLC0415 - see above

    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry)


def score_keys(identity: str, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Return one key for each tuple: 16 bytes of BLAKE2b over identity, query and the tuple's texts.

    Each part goes in as the hash of itself, so that no two divisions of the same characters meet.
    """
    start = _hash(identity.encode()) + _hash(_bytes(query))
    hashes = {index: _hash(_bytes(documents[index])) for indices in tuples for index in indices}
    return [PREFIX + _hash(start + b"".join(hashes[index] for index in indices)) for indices in tuples]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _decoded(found: object) -> float:
    """Return the score, or NaN for something else than four bytes of a finite one."""
    if isinstance(found, bytes) and len(found) == VALUE.size:
        (value,) = VALUE.unpack(found)
        if np.isfinite(value):
            return float(value)
    ERRORS.inc()
    return float("nan")


def _merged(values: npt.NDArray[np.float32], absent: Sequence[int], fresh: Scores) -> Scores:
    """Return cached and fresh scores as one answer, which ends before the first tuple that was not reached."""
    reached = len(values) if fresh.reached == len(absent) else absent[fresh.reached]
    values[reached:] = np.nan
    return Scores(
        values,
        {absent[index]: reason for index, reason in fresh.failures.items() if index < fresh.reached},
        reached=reached,
        inferences=fresh.inferences,
        cached=reached - fresh.reached,
        truncated=fresh.truncated,
        query_truncated=fresh.query_truncated,
    )
