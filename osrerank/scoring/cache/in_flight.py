"""Let one thread compute a score that several threads need at the same time, while the others wait for it."""

import threading
from collections.abc import Iterable, Mapping

from osrerank._platform import renew_after_fork
from osrerank.scoring.cache.local import CachedScore
from osrerank.types import Deadline


class PendingScore:
    """A score that another thread is computing."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: CachedScore | None = None

    def complete(self, value: CachedScore | None) -> None:
        """Set the score, or None if it could not be computed, and wake the threads that wait for it."""
        self._value = value
        self._done.set()

    def wait(self, deadline: Deadline) -> CachedScore | None:
        """Wait for the score and return it, or None if it could not be computed or is not ready by the deadline."""
        return self._value if deadline.wait(self._done) else None


class InFlight:
    """The scores that this process is computing, by cache key."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget all pending scores in a forked child, where the threads that compute them do not run."""
        self._pending: dict[bytes, PendingScore] = {}
        self._lock = threading.Lock()

    def claim(self, keys: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, PendingScore]]:
        """Claim the keys whose scores no other thread is computing.

        Returns:
            The claimed keys, whose scores the caller must compute and pass to `complete`, and the pending scores of the
            other keys, for which the caller can wait.
        """
        claimed_keys: list[bytes] = []
        pending_scores: dict[bytes, PendingScore] = {}
        with self._lock:
            for key in keys:
                pending = self._pending.get(key)
                if pending is not None:
                    pending_scores[key] = pending
                else:
                    self._pending[key] = PendingScore()
                    claimed_keys.append(key)
        return claimed_keys, pending_scores

    def complete(self, keys: Iterable[bytes], scores: Mapping[bytes, CachedScore]) -> None:
        """Pass the scores of claimed keys to the threads that wait for them. A missing score counts as failed."""
        with self._lock:
            completed = [(self._pending.pop(key), scores.get(key)) for key in keys]
        for pending, score in completed:
            pending.complete(score)
