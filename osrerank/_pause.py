"""Pause after a failure: a call that has just failed is not tried again for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

from osrerank._platform import fork_safe_lock

Answer = TypeVar("Answer")


class Pause:
    """Makes calls, except for a while after one has failed. Safe to use from many threads.

    Args:
        rest_s: length of a pause, in seconds.
        report: called with each failure, and whether it began a pause; a concurrent failure only prolongs one.
        clock: returns seconds.
    """

    def __init__(
        self,
        rest_s: float,
        report: Callable[[Exception, bool], None] = lambda _error, _is_first: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rest_s, self._report, self._clock = rest_s, report, clock
        self._until_s = 0.0
        self._lock = fork_safe_lock()

    @property
    def is_on(self) -> bool:
        """Whether the latest failure was less than ``rest_s`` ago."""
        return self._clock() < self._until_s

    def attempt(self, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Make a call and return its result; return ``otherwise`` if the call fails, or during a pause."""
        if self.is_on:
            return otherwise
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the search goes on without the call's result
            self.begin(error)
            return otherwise

    def begin(self, error: Exception) -> None:
        """Report a failure, and start or restart the pause."""
        with self._lock:
            is_first = not self.is_on
            self._until_s = self._clock() + self._rest_s
        self._report(error, is_first)
