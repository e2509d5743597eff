"""A cache in this process, whose values expire after a minute: for what is read from indexes' mappings."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KEPT_S = 60.0
"""How long a value is used before it is read again."""
MOST_KEPT = 1_000
"""How many values are kept; one more clears the cache."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """A cache whose values expire. Safe to use from many threads.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[Key, tuple[float, Value]] = {}

    def get(self, key: Key, *, most_s: float = KEPT_S) -> Value | None:
        """Return the key's value if it is younger than ``most_s`` seconds, else None."""
        with self._lock:
            known = self._values.get(key)
        return known[1] if known is not None and self._clock() - known[0] < most_s else None

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            if len(self._values) >= MOST_KEPT:
                self._values.clear()
            self._values[key] = self._clock(), value
