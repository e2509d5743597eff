"""What is read of indices' mappings, kept in this process for a minute."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KEPT_S = 60.0
"""How long a mapping is believed without being read again."""
MOST_KEPT = 1_000
"""Values that are kept; then all are forgotten."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values that are believed for a while. Safe to use from many threads.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[Key, tuple[float, Value]] = {}

    def get(self, key: Key, *, most_s: float = KEPT_S) -> Value | None:
        """Return a value that is younger than so many seconds; None where there is none."""
        with self._lock:
            known = self._values.get(key)
        return known[1] if known is not None and self._clock() - known[0] < most_s else None

    def last(self, key: Key) -> Value | None:
        """Return a value of any age; None where there is none."""
        with self._lock:
            return self._values[key][1] if key in self._values else None

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            if len(self._values) >= MOST_KEPT:
                self._values.clear()
            self._values[key] = self._clock(), value
