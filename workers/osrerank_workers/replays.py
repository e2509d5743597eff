"""Limit how often a worker accepts the same request.

A client sends the same request again if it is lost, but at most `MAX_SENDS` times in total. Any further copy must come
from an attacker who recorded the request.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from cachetools import TLRUCache

from osrerank._caches import SharedCache
from osrerank.errors import PayloadError
from osrerank.scoring.remote.delivery import MAX_SENDS
from osrerank.scoring.remote.messages import ChunkRequest

MAX_AGE_S = 3600.0
"""Maximum age of a request without a deadline, in seconds."""
MAX_REQUESTS = 100_000
"""Maximum number of requests that are counted. If there are more, the counts of the oldest are removed."""


class Arrivals(NamedTuple):
    """How often a request arrived, and the time by the broker's clock at which the count can be removed."""

    n_arrivals: int
    expires_at_s: float


class ReplayGuard:
    """Counts the arrivals of each request until its deadline. After that, a worker drops the request anyway.

    Args:
        now_s: a function that returns the time of the broker's clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._arrivals = SharedCache(lambda: TLRUCache[str, Arrivals](MAX_REQUESTS, _expiry_at_s, now_s))

    def check(self, request: ChunkRequest) -> None:
        """Count a request, and refuse a replay.

        Raises:
            PayloadError: the request arrived too often, or it has no deadline and is more than an hour old.
        """
        expires_at_s = request.deadline_s
        if expires_at_s is None:
            expires_at_s = request.sent_s + MAX_AGE_S
            if self._now_s() > expires_at_s:
                raise PayloadError(
                    "a scoring request without a deadline is more than an hour old, so it is not scored",
                    reason="expired",
                )
        chunk_id = request.chunk
        with self._arrivals as arrivals:
            previous = arrivals.get(chunk_id)
            n_arrivals = 1 if previous is None else previous.n_arrivals + 1
            arrivals[chunk_id] = Arrivals(n_arrivals, expires_at_s)
        if n_arrivals > MAX_SENDS:
            raise PayloadError(
                f"it arrived more than {MAX_SENDS} times: do workers die while they score it? their logs say why",
                reason="replayed",
            )


def _expiry_at_s(_chunk_id: str, arrivals: Arrivals, _now_s: float) -> float:
    """Return when the cache removes an entry. `TLRUCache` calls this with the key, the value and the time."""
    return arrivals.expires_at_s
