"""Scores in a bounded part of this process, with or without others in Redis."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

LOCAL_ENTRY_BYTES = 250
"""What a score takes, key and all, measured in tests/bench/test_cache.py."""


Kept = float | tuple[float, float, int]
"""A score; with its log-odds where these are others and what was cut, if anything (`osrerank.types.Scores`)."""


class Store(Protocol):
    """Scores that other processes may share."""

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:
        """Return the scores that there are, by key: all of them, and those that must be written again to stay."""

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        """Keep scores."""

    def close(self) -> None:
        """Close the connections."""


class NoStore:
    """Where scores are not shared."""

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:  # noqa: ARG002 - its contract
        return {}, {}

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        pass

    def close(self) -> None:
        pass


class LocalStore:
    """The scores used last, in this process.

    Args:
        most_bytes: memory that they may take; 0 keeps none.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most = int(most_bytes / LOCAL_ENTRY_BYTES)
        self._scores: OrderedDict[bytes, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the scores that there are, by key."""
        with self._lock:
            found = {key: self._scores[key] for key in keys if key in self._scores}
            for key in found:
                self._scores.move_to_end(key)
        return found

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        """Keep scores, and drop those that were not used for longest."""
        if self._most == 0:
            return
        with self._lock:
            for key, value in scores.items():
                self._scores[key] = value
                self._scores.move_to_end(key)
            while len(self._scores) > self._most:
                self._scores.popitem(last=False)

    def __len__(self) -> int:
        return len(self._scores)
