"""Limit how often a worker accepts the same request.

A client sends a lost request again, a few times; whoever recorded a signed request must not replay it without end.
"""

import time
from collections.abc import Callable

from cachetools import TLRUCache

from osrerank._caches import SharedCache
from osrerank.errors import PayloadError
from osrerank.scoring.remote.delivery import MAX_SENDS
from osrerank.scoring.remote.messages import ChunkRequest

UNBOUNDED_LIVES_S = 3600.0
"""The age from which a request without a deadline is refused, in seconds."""
MAX_KEPT = 100_000
"""Maximum number of requests remembered; beyond it, the oldest requests are forgotten."""


class Replays:
    """Counts requests until they expire; an expired request is dropped because its deadline has passed.

    Args:
        now_s: a function that returns the broker's time, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._seen = SharedCache(lambda: TLRUCache[str, tuple[int, float]](MAX_KEPT, _expiry_s, now_s))

    def admit(self, request: ChunkRequest) -> None:
        """Count a request, and refuse a replay.

        Raises:
            PayloadError: it came too often, or it has no deadline and is an hour old.
        """
        now_s = self._now_s()
        if request.deadline_s is None and now_s - request.sent_s > UNBOUNDED_LIVES_S:
            raise PayloadError("a request without a deadline is more than an hour old", reason="expired")
        expires_s = request.sent_s + UNBOUNDED_LIVES_S if request.deadline_s is None else request.deadline_s
        with self._seen as arrivals:
            times = arrivals.get(request.chunk, (0, 0.0))[0] + 1
            arrivals[request.chunk] = times, expires_s
        if times > MAX_SENDS:
            raise PayloadError(f"a request came more than {MAX_SENDS} times", reason="replayed")


def _expiry_s(_chunk: str, counted: tuple[int, float], _now_s: float) -> float:
    """Return the time until which a request is remembered."""
    return counted[1]
