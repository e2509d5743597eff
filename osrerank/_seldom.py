"""Limit how often a log line is repeated, for events that may happen at every search."""

import time
from collections.abc import Callable, Hashable

from osrerank._platform import fork_safe_lock

EVERY_S = 60.0
"""The least time between two log lines of a kind, in seconds, by default."""


class Seldom:
    """Decides whether a log line of a kind is due; safe to use from many threads.

    Args:
        every_s: the least time between two lines of a kind, in seconds.
        clock: returns seconds, for tests.
    """

    def __init__(self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._lock = fork_safe_lock()
        self._last: dict[Hashable, float] = {}

    def is_due(self, kind: Hashable = None) -> bool:
        """Return whether to log a line of this kind now; a caller that gets True must log it."""
        now_s = self._clock()
        with self._lock:
            if now_s - self._last.get(kind, -self._every_s) < self._every_s:
                return False
            self._last[kind] = now_s
            return True
