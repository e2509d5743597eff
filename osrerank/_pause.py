"""Pause calls to a service after a failure."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from osrerank._platform import fork_safe_lock

Result = TypeVar("Result")


class Pause:
    """Stops calls to a service for a while after a call has failed. Safe to use from many threads.

    Args:
        lengths_s: the length of every pause, in seconds. A sequence such as ``(1, 5, 30)`` gives the lengths after one,
            two, and three or more consecutive failures. Such pauses are shortened at random by up to a half, so that
            processes do not all retry at the same moment.
        report: a function that is called with each error, and with a boolean: True if the error began a pause, or False
            if it prolonged a pause.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        lengths_s: float | Sequence[float],
        report: Callable[[Any, bool], None] = lambda _error, _is_first: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lengths_s: Sequence[float] = (lengths_s,) if isinstance(lengths_s, int | float) else lengths_s
        self._report = report
        self._clock = clock
        self._ends_at_s = 0.0
        self._n_failures = 0
        self._lock = fork_safe_lock()

    @property
    def is_on(self) -> bool:
        """Whether calls are paused now."""
        return self._clock() < self._ends_at_s

    @property
    def failures(self) -> int:
        """The number of failures since the last `end`."""
        return self._n_failures

    def attempt(self, call: Callable[[], Result], default: Result) -> Result:
        """Make a call, and return its result. Return the default during a pause or if the call fails."""
        if self.is_on:
            return default
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the search continues without the call's result
            self.begin(error)
            return default

    def begin(self, error: BaseException | None = None) -> float:
        """Begin or prolong a pause, report the error if there is one, and return the pause's length in seconds."""
        with self._lock:
            is_first = not self.is_on
            self._n_failures += 1
            length_s = self._lengths_s[min(self._n_failures, len(self._lengths_s)) - 1]
            if len(self._lengths_s) > 1:
                length_s *= random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._ends_at_s = self._clock() + length_s
        if error is not None:
            self._report(error, is_first)
        return length_s

    def end(self) -> None:
        """End the pause after a successful call, and count failures from 0 again."""
        with self._lock:
            self._ends_at_s = 0.0
            self._n_failures = 0
