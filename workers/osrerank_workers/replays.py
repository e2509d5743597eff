"""Limit how often a worker accepts the same request.

A client sends a lost request again, but at most `MAX_SENDS` times. Any further copy must come from an attacker who
recorded the request.
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
"""The maximum age of a request without a deadline, in seconds."""
MAX_REQUESTS = 100_000
"""The maximum number of counted requests. Beyond it, the oldest counts are removed."""


class Arrivals(NamedTuple):
    """How often a request arrived, and when its count can be removed, in the broker's time."""

    times: int
    expires_s: float


class ReplayGuard:
    """Counts each request until its deadline, after which the worker drops it anyway.

    Args:
        now_s: a function that returns the broker's time, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._arrivals = SharedCache(lambda: TLRUCache[str, Arrivals](MAX_REQUESTS, _expiry_s, now_s))

    def check(self, request: ChunkRequest) -> None:
        """Count a request, and refuse a replay.

        Raises:
            PayloadError: the request arrived too often, or it has no deadline and is more than an hour old.
        """
        expires_s = request.deadline_s
        if expires_s is None:
            expires_s = request.sent_s + MAX_AGE_S
            if self._now_s() > expires_s:
                raise PayloadError(
                    "a scoring request is more than an hour old and has no deadline; it is not scored", reason="expired"
                )
        with self._arrivals as arrivals:
            previous = arrivals.get(request.chunk)
            times = 1 if previous is None else previous.times + 1
            arrivals[request.chunk] = Arrivals(times, expires_s)
        if times > MAX_SENDS:
            raise PayloadError(f"a request arrived more than {MAX_SENDS} times", reason="replayed")


def _expiry_s(_chunk: str, arrivals: Arrivals, _now_s: float) -> float:
    return arrivals.expires_s
