"""How often a worker takes the same request: a client sends one again when it was lost, nobody else may at will."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from osrerank.errors import PayloadError
from osrerank.scoring.remote.delivery import MOST_SENDS
from osrerank.scoring.remote.messages import ChunkRequest

UNBOUNDED_LIVES_S = 3600.0
"""A request without a deadline is refused when it is older."""
MOST_KEPT = 100_000
"""Requests that are remembered; the oldest are forgotten beyond it."""


class Replays:
    """Remembers requests until they expire. After that their own deadline keeps them from being scored.

    Args:
        now_s: returns the broker's time, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def admit(self, request: ChunkRequest) -> None:
        """Count a request.

        Raises:
            PayloadError: it came too often, or it has no deadline and is an hour old.
        """
        now_s = self._now_s()
        if request.deadline_s is None and now_s - request.sent_s > UNBOUNDED_LIVES_S:
            raise PayloadError("a request without a deadline is more than an hour old", reason="expired")
        expires_s = request.sent_s + UNBOUNDED_LIVES_S if request.deadline_s is None else request.deadline_s
        with self._lock:
            self._forget(now_s)
            times = self._seen.get(request.chunk, (0, 0.0))[0] + 1
            self._seen[request.chunk] = times, expires_s
        if times > MOST_SENDS:
            raise PayloadError(f"a request came more than {MOST_SENDS} times", reason="replayed")

    def _forget(self, now_s: float) -> None:
        """Drop the oldest while they have expired, or are too many."""
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest][1] >= now_s and len(self._seen) < MOST_KEPT:
                return
            del self._seen[oldest]
