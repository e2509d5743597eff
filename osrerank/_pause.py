"""Pause after a failure, so that a call that has just failed is not tried again at once."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from osrerank._platform import fork_safe_lock

Answer = TypeVar("Answer")


class Pause:
    """Makes calls, except for a while after one has failed. Safe to use from many threads.

    Args:
        rest_s: the length of a pause, in seconds; or the lengths after the first failure in a row, after the second and
            so on, of which the last repeats. With several lengths, up to a half of each is taken off at random, so that
            processes do not all try again at the same moment.
        report: a function that is called with each failure, and whether it began a pause; a failure during a pause only
            prolongs it.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        rest_s: float | Sequence[float],
        report: Callable[[Any, bool], None] = lambda _error, _is_first: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rests_s: Sequence[float] = (rest_s,) if isinstance(rest_s, int | float) else rest_s
        self._report, self._clock = report, clock
        self._until_s, self._failures = 0.0, 0
        self._lock = fork_safe_lock()

    @property
    def is_on(self) -> bool:
        """Whether the latest failure was less than ``rest_s`` ago."""
        return self._clock() < self._until_s

    @property
    def failures(self) -> int:
        """The number of failures since the last `end`."""
        return self._failures

    def attempt(self, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Make a call and return its result; return ``otherwise`` if the call fails, or during a pause."""
        if self.is_on:
            return otherwise
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the search goes on without the call's result
            self.begin(error)
            return otherwise

    def begin(self, error: BaseException) -> float:
        """Report a failure, and start or restart the pause; return its length in seconds."""
        with self._lock:
            is_first = not self.is_on
            self._failures += 1
            rest_s = self._rests_s[min(self._failures, len(self._rests_s)) - 1]
            if len(self._rests_s) > 1:
                rest_s *= random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._until_s = self._clock() + rest_s
        self._report(error, is_first)
        return rest_s

    def end(self) -> None:
        """End the pause, because a call succeeded: the next failure is the first in a row."""
        with self._lock:
            self._until_s, self._failures = 0.0, 0
