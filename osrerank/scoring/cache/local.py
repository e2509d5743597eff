"""Keep the most recently used scores in this process, within a bounded memory."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cachetools import LRUCache

from osrerank._caches import SharedCache

LOCAL_ENTRY_BYTES = 250
"""Memory of a score with its key, in bytes."""

Kept = float | tuple[float, float, int]
"""A cached score: a logit, or (logit, log-odds, cuts) if the log-odds differ or a text was cut; see `Scores`."""


class SharedScores(Protocol):
    """A cache of scores that processes may share."""

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:
        """Return the cached scores by key, and those among them that must be written again to stay."""

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        """Store scores by key."""

    def close(self) -> None:
        """Close the connections."""


class NoStore:
    """A store that keeps nothing, for scores that are not shared."""

    def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:  # noqa: ARG002 - its contract
        return {}, {}

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        pass

    def close(self) -> None:
        pass


class LocalStore:
    """The most recently used scores, in this process.

    Args:
        most_bytes: memory that the scores may take, in bytes; 0 keeps none.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most = int(most_bytes / LOCAL_ENTRY_BYTES)
        self._scores = SharedCache(lambda: LRUCache[bytes, Kept](self._most))

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the cached scores by key."""
        with self._scores as known:
            return {key: known[key] for key in keys if key in known}

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        """Store scores, and drop the least recently used ones over the limit."""
        if self._most == 0:
            return
        with self._scores as known:
            known.update(scores)

    def __len__(self) -> int:
        with self._scores as known:
            return len(known)
