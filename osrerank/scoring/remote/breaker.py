"""A circuit breaker: while the broker is down, searches fail at once instead of each waiting for a connection."""

import threading
import time
from collections.abc import Callable
from enum import Enum

from osrerank._pause import Pause

PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""The pauses after consecutive failures, in seconds. After the fourth failure, each pause is as long as the last."""


class BrokerAccess(Enum):
    """What a caller is allowed to do with the broker."""

    USE = "use"
    PROBE = "probe"
    """The caller must test whether the broker replies again. Until it has, other callers get `NONE`."""
    NONE = "none"


class Breaker:
    """A circuit breaker for the broker: closed while it replies, open after a failure.

    While the circuit is open, callers may not use the broker. After each pause, one caller may probe the broker.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = Pause(PAUSES_S, clock=clock)
        self._lock = threading.Lock()
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether the latest attempt to use the broker has failed."""
        return self._pause.failures > 0

    def attempt(self) -> BrokerAccess:
        """Return the caller's access. A caller that probes the broker must then call `close` or `trip`."""
        with self._lock:
            if not self.is_open:
                return BrokerAccess.USE
            if self._is_probing or self._pause.is_on:
                return BrokerAccess.NONE
            self._is_probing = True
            return BrokerAccess.PROBE

    def close(self) -> None:
        """Record that the broker replied, and close the circuit."""
        with self._lock:
            self._is_probing = False
            self._pause.end()

    def trip(self, *, is_probe: bool = False) -> None:
        """Record that the broker did not reply, and open the circuit. If it is open, ignore all but failed probes."""
        with self._lock:
            if is_probe:
                self._is_probing = False
            elif self.is_open:
                return
            self._pause.begin(ConnectionError("the broker does not reply"))
