"""Cache what was read from the search engine for a minute."""

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from osrerank._platform import fork_safe_lock

KEPT_S = 60.0
"""How long a value is used before it is read again, in seconds."""
MOST_KEPT = 1_000
"""The most values in a cache; one more clears it."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """A cache whose values expire. Safe to use from many threads.

    Args:
        clock: returns seconds.
        kept_s: how long a value is used, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, kept_s: float = KEPT_S) -> None:
        self._clock, self._kept_s = clock, kept_s
        self._lock = fork_safe_lock()
        self._values: dict[Key, tuple[float, Value]] = {}

    def get(self, key: Key) -> Value | None:
        """Return the key's value; None if there is none, or it has expired."""
        with self._lock:
            known = self._values.get(key)
        return known[1] if known is not None and self._clock() - known[0] < self._kept_s else None

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            if len(self._values) >= MOST_KEPT:
                self._values.clear()
            self._values[key] = self._clock(), value
