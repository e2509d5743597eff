"""A pause after a failure: what failed just now is left alone for a while."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class Pause:
    """Says whether something failed just now, and calls it where it did not. Safe to use from many threads.

    Args:
        rest_s: length of a pause, in seconds.
        report: is given each failure, and whether it is the first; the others happened at the same time.
        clock: gives seconds.
    """

    def __init__(
        self,
        rest_s: float,
        report: Callable[[Exception, bool], None] = lambda _error, _is_first: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rest_s, self._report, self._clock = rest_s, report, clock
        self._until_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether there was a failure just now."""
        return self._clock() < self._until_s

    def attempt(self, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the call's result, or something else where it fails, or during a pause."""
        if self.is_on:
            return otherwise
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong there, the search goes on
            self.begin(error)
            return otherwise

    def begin(self, error: Exception) -> None:
        """Report a failure, and begin a pause, or begin it anew."""
        with self._lock:
            is_first = not self.is_on
            self._until_s = self._clock() + self._rest_s
        self._report(error, is_first)
