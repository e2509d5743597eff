"""Keep the most recently used scores in this process, within a bounded memory."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from osrerank._platform import fork_safe_lock

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
        self._scores: OrderedDict[bytes, Kept] = OrderedDict()
        self._lock = fork_safe_lock()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the cached scores by key."""
        with self._lock:
            found = {key: self._scores[key] for key in keys if key in self._scores}
            for key in found:
                self._scores.move_to_end(key)
        return found

    def write(self, scores: Mapping[bytes, Kept]) -> None:
        """Store scores, and drop the least recently used ones over the limit."""
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
