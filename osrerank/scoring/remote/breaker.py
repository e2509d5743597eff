"""A circuit breaker: while the broker is away, searches are told so at once and nobody dials it for each of them."""

import random
import threading
import time
from collections.abc import Callable
from enum import Enum

PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""After each failure in turn; the last is kept."""


def pause_s(failures: int) -> float:
    """Return how long to leave the broker alone after so many failures, in seconds.

    Up to a half is taken off at random, so that not all clients and workers come back at the same moment.
    """
    return PAUSES_S[min(failures, len(PAUSES_S)) - 1] * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class Attempt(Enum):
    """What a caller may do: use the broker, probe it alone, or neither."""

    USE = "use"
    PROBE = "probe"
    NONE = "none"


class Breaker:
    """Closed while the broker answers; open after a failure; half open for one probe after each pause.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._probe_at = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._failures > 0

    def attempt(self) -> Attempt:
        """Say what a caller may do now; one that is given a probe must end with `close` or `trip`."""
        with self._lock:
            if self._failures == 0:
                return Attempt.USE
            if self._probing or self._clock() < self._probe_at:
                return Attempt.NONE
            self._probing = True
            return Attempt.PROBE

    def close(self) -> None:
        """Note that the broker answered."""
        with self._lock:
            self._failures, self._probing = 0, False

    def trip(self, *, probed: bool = False) -> None:
        """Note that the broker did not answer; failures at the same time count once.

        Args:
            probed: whether it was the probe that failed.
        """
        with self._lock:
            if probed:
                self._probing = False
            elif self._failures > 0:
                return
            self._failures += 1
            self._probe_at = self._clock() + pause_s(self._failures)
