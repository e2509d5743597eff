"""Limit how often similar log lines are repeated, for events that can happen in every search."""

import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache, TTLCache

from osrerank._caches import SharedCache

DEFAULT_INTERVAL_S = 60.0
"""The default minimum time between two similar lines, in seconds."""
MAX_KEYS = 1_000
"""The maximum number of remembered keys. A line whose key was forgotten is logged again before the interval is over."""


class LogThrottle:
    """Decides whether to log a line again. Lines with the same key count as similar. Safe to use from many threads.

    Args:
        interval_s: the minimum time between two similar lines, in seconds.
        clock: a function that returns the time in seconds.
    """

    def __init__(self, interval_s: float = DEFAULT_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._logged = SharedCache(lambda: TTLCache[Hashable, bool](MAX_KEYS, interval_s, clock))
        self._suppressed = SharedCache(lambda: LRUCache[Hashable, int](MAX_KEYS))

    def should_log(self, key: Hashable = None) -> bool:
        """Return whether to log a line with this key now. If so, the key's interval begins."""
        with self._logged as logged:
            if key in logged:
                return False
            logged[key] = True
            return True

    def count_suppressed(self, key: Hashable = None) -> int | None:
        """Decide whether to log a line. Return how many similar lines were suppressed since the last logged one.

        If this line is suppressed too, count it and return None.
        For three lines with the same key, of which only the second is within the interval, return 0, None and 1.
        """
        should_log = self.should_log(key)
        with self._suppressed as suppressed:
            if should_log:
                return suppressed.pop(key, 0)
            suppressed[key] = suppressed.get(key, 0) + 1
        return None
