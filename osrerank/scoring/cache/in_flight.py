"""Scores in flight: if several threads need the same score at once, one of them computes it for all."""

import threading
from collections.abc import Iterable, Mapping

from osrerank._platform import renew_after_fork
from osrerank.scoring.cache.local import Kept
from osrerank.types import Deadline


class PendingScore:
    """A score that another thread is computing."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: Kept | None = None

    def complete(self, value: Kept | None) -> None:
        """Set the score; None if it could not be computed."""
        self._value = value
        self._done.set()

    def wait(self, deadline: Deadline) -> Kept | None:
        """Wait for the score and return it; None if it failed or did not come before the deadline."""
        return self._value if deadline.wait(self._done) else None


class InFlight:
    """The scores that this process is computing, by key."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop all pending scores in a forked child, where the parent's threads do not run."""
        self._pending: dict[bytes, PendingScore] = {}
        self._lock = threading.Lock()

    def claim(self, keys: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, PendingScore]]:
        """Claim scores: return the keys that the caller must compute and `complete`, and those that others compute."""
        own: list[bytes] = []
        others: dict[bytes, PendingScore] = {}
        with self._lock:
            for key in keys:
                pending = self._pending.get(key)
                if pending is not None:
                    others[key] = pending
                else:
                    self._pending[key] = PendingScore()
                    own.append(key)
        return own, others

    def complete(self, keys: Iterable[bytes], scores: Mapping[bytes, Kept]) -> None:
        """Hand the scores of claimed keys to the threads that wait for them; a key without a score failed."""
        with self._lock:
            done = [(self._pending.pop(key), scores.get(key)) for key in keys]
        for pending, score in done:
            pending.complete(score)
