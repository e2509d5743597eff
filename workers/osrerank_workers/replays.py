"""How often a worker takes the same request: a client sends one again when it was lost, nobody else may at will."""

import time
from collections.abc import Callable

from cachetools import TLRUCache

from osrerank._caches import SharedCache
from osrerank.errors import PayloadError
from osrerank.scoring.remote.delivery import MOST_SENDS
from osrerank.scoring.remote.messages import ChunkRequest

UNBOUNDED_LIVES_S = 3600.0
"""A request without a deadline is refused when it is older."""
MOST_KEPT = 100_000
"""Requests that are remembered; beyond it, those are forgotten that came least recently."""


class Replays:
    """Remembers requests until they expire. After that their own deadline keeps them from being scored.

    Args:
        now_s: returns the broker's time, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._seen = SharedCache(lambda: TLRUCache[str, tuple[int, float]](MOST_KEPT, _expiry_s, now_s))

    def admit(self, request: ChunkRequest) -> None:
        """Count a request.

        Raises:
            PayloadError: it came too often, or it has no deadline and is an hour old.
        """
        now_s = self._now_s()
        if request.deadline_s is None and now_s - request.sent_s > UNBOUNDED_LIVES_S:
            raise PayloadError("a request without a deadline is more than an hour old", reason="expired")
        expires_s = request.sent_s + UNBOUNDED_LIVES_S if request.deadline_s is None else request.deadline_s
        with self._seen as seen:
            times = seen.get(request.chunk, (0, 0.0))[0] + 1
            seen[request.chunk] = times, expires_s
        if times > MOST_SENDS:
            raise PayloadError(f"a request came more than {MOST_SENDS} times", reason="replayed")


def _expiry_s(_chunk: str, counted: tuple[int, float], _now_s: float) -> float:
    """Return until when a request is remembered."""
    return counted[1]
