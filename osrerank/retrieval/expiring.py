"""A cache whose values expire after a minute, for mappings and settings that osrerank reads from the search engine."""

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import TTLCache

from osrerank._caches import SharedCache

LIFETIME_S = 60.0
"""The default time after which a cached value expires, in seconds."""
MAX_VALUES = 1_000
"""The maximum number of values in a cache. Beyond it, the least recently used value is dropped."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """A cache whose values expire. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, lifetime_s: float = LIFETIME_S) -> None:
        self._values = SharedCache(lambda: TTLCache[Key, Value](MAX_VALUES, lifetime_s, clock))

    def get(self, key: Key) -> Value | None:
        """Return the key's value, or None if it is missing or has expired."""
        with self._values as values:
            return values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Store a value under a key."""
        with self._values as values:
            values[key] = value

    def clear(self) -> None:
        """Drop all values."""
        with self._values as values:
            values.clear()
