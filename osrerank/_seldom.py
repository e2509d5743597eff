"""Limit how often a log line is repeated, for events that may happen at every search."""

import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache, TTLCache

from osrerank._caches import SharedCache

EVERY_S = 60.0
"""The default minimum time between two log lines of a kind, in seconds."""
MAX_KINDS = 1_000
"""The maximum number of kinds of lines that are remembered. Lines of further kinds may be logged more often."""


class Seldom:
    """Decides whether a log line of a kind is due; safe to use from many threads.

    Args:
        every_s: the minimum time between two lines of a kind, in seconds.
        clock: a function that returns the time in seconds, for tests.
    """

    def __init__(self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._logged = SharedCache(lambda: TTLCache[Hashable, bool](MAX_KINDS, every_s, clock))
        self._unlogged = SharedCache(lambda: LRUCache[Hashable, int](MAX_KINDS))

    def is_due(self, kind: Hashable = None) -> bool:
        """Return whether to log a line of this kind now; a caller that gets True must log it."""
        with self._logged as logged:
            if kind in logged:
                return False
            logged[kind] = True
            return True

    def count_unlogged(self, kind: Hashable = None) -> int | None:
        """Count an event; return None if no line is due, else the number of events not logged since the last line.

        A caller that gets a number must log the event.
        """
        is_due = self.is_due(kind)
        with self._unlogged as unlogged:
            if is_due:
                return unlogged.pop(kind, 0)
            unlogged[kind] = unlogged.get(kind, 0) + 1
        return None
