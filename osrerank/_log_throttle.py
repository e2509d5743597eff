"""Limit how often a log line is repeated, for events that can happen in every search."""

import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache, TTLCache

from osrerank._caches import SharedCache

DEFAULT_INTERVAL_S = 60.0
"""The default minimum time between two lines of the same kind, in seconds."""
MAX_KINDS = 1_000
"""The maximum number of remembered kinds. With more kinds, a line might be repeated too early."""


class LogThrottle:
    """Decides whether a log line of a kind is due. Safe to use from many threads.

    Args:
        interval_s: the minimum time between two lines of the same kind, in seconds.
        clock: a function that returns the time in seconds.
    """

    def __init__(self, interval_s: float = DEFAULT_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._logged = SharedCache(lambda: TTLCache[Hashable, bool](MAX_KINDS, interval_s, clock))
        self._unlogged = SharedCache(lambda: LRUCache[Hashable, int](MAX_KINDS))

    def is_due(self, kind: Hashable = None) -> bool:
        """Return whether to log a line of this kind now. The caller must then log it."""
        with self._logged as logged:
            if kind in logged:
                return False
            logged[kind] = True
            return True

    def count_unlogged(self, kind: Hashable = None) -> int | None:
        """Count an event. Return None if no line is due.

        Otherwise, return the number of events since the last line. The caller must then log this event.
        """
        is_due = self.is_due(kind)
        with self._unlogged as unlogged:
            if is_due:
                return unlogged.pop(kind, 0)
            unlogged[kind] = unlogged.get(kind, 0) + 1
        return None
