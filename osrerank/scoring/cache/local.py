"""Cache scores in this process. `SharedStore` is the interface of caches that several processes share."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cachetools import LRUCache

from osrerank._caches import SharedCache

ENTRY_BYTES = 250
"""Estimated memory of a score and its key in this process, in bytes."""

CachedScore = float | tuple[float, float, int]
"""A logit, or (logit, log-odds, cuts) if the log-odds differ from the logit or a text was truncated.

The bits of ``cuts``, as in `Scores`, say which texts were truncated.
"""


class SharedStore(Protocol):
    """The interface of a score cache that processes share."""

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, CachedScore], dict[bytes, CachedScore]]:
        """Return the cached scores by key, and those that expire soon, which the caller should write again."""

    def write(self, scores: Mapping[bytes, CachedScore]) -> None:
        """Store scores by key."""

    def close(self) -> None:
        """Close the connections."""


class EmptyStore:
    """A shared cache that is always empty, for a process that caches scores only in its own memory."""

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, CachedScore], dict[bytes, CachedScore]]:  # noqa: ARG002
        return {}, {}

    def write(self, scores: Mapping[bytes, CachedScore]) -> None:
        pass

    def close(self) -> None:
        pass


class LocalStore:
    """The most recently used scores of this process.

    Args:
        max_bytes: maximum memory of the scores, in bytes. A value of 0 turns the cache off.
    """

    def __init__(self, max_bytes: float) -> None:
        self._max_entries = int(max_bytes / ENTRY_BYTES)
        # threads share this cache
        self._scores = SharedCache(lambda: LRUCache[bytes, CachedScore](self._max_entries))

    def read(self, keys: Sequence[bytes]) -> dict[bytes, CachedScore]:
        """Return the cached scores by key."""
        with self._scores as cached:
            return {key: cached[key] for key in keys if key in cached}

    def write(self, scores: Mapping[bytes, CachedScore]) -> None:
        """Store scores by key, and drop the least recently used ones above the limit."""
        if self._max_entries == 0:
            return
        with self._scores as cached:
            cached.update(scores)
