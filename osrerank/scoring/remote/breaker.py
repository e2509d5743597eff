"""A circuit breaker: while the broker is down, searches fail at once instead of each waiting for a connection."""

import random
import threading
import time
from collections.abc import Callable
from enum import Enum

PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""The pause after the first, second and each further failure in a row, in seconds; the last value repeats."""


def pause_s(failures: int) -> float:
    """Return how long not to call the broker after so many failures in a row, in seconds.

    Up to a half is taken off at random, so that clients and workers do not all come back at the same moment.
    """
    return PAUSES_S[min(failures, len(PAUSES_S)) - 1] * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class BrokerAccess(Enum):
    """What a caller may do with the broker: use it, be the only one to probe it, or neither."""

    USE = "use"
    PROBE = "probe"
    NONE = "none"


class Breaker:
    """A circuit breaker: closed while the broker answers, open after a failure, half open for one probe after a pause.

    Args:
        clock: returns seconds; for tests.
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

    def attempt(self) -> BrokerAccess:
        """Return what a caller may do now; a caller that gets `BrokerAccess.PROBE` must then call `close` or `trip`."""
        with self._lock:
            if self._failures == 0:
                return BrokerAccess.USE
            if self._probing or self._clock() < self._probe_at:
                return BrokerAccess.NONE
            self._probing = True
            return BrokerAccess.PROBE

    def close(self) -> None:
        """Record that the broker answered, and close the circuit."""
        with self._lock:
            self._failures, self._probing = 0, False

    def trip(self, *, probed: bool = False) -> None:
        """Record that the broker did not answer, and open the circuit; concurrent failures count as one.

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
