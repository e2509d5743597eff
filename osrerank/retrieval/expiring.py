"""Keep what was read from the search engine in a cache for one minute."""

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import TTLCache

from osrerank._caches import SharedCache

KEPT_S = 60.0
"""How long a value is used before it is read again, in seconds."""
MOST_KEPT = 1_000
"""The most values in a cache; one more drops the one that was not used for longest."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """A cache whose values expire. Safe to use from many threads.

    Args:
        clock: returns seconds.
        kept_s: how long a value is used, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, kept_s: float = KEPT_S) -> None:
        self._values = SharedCache(lambda: TTLCache[Key, Value](MOST_KEPT, kept_s, clock))

    def get(self, key: Key) -> Value | None:
        """Return the key's value; None if there is none, or it has expired."""
        with self._values as values:
            return values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        with self._values as values:
            values[key] = value

    def clear(self) -> None:
        """Drop all values."""
        with self._values as values:
            values.clear()
