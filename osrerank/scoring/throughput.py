"""How fast a model has been lately, so that no batch starts that would miss the deadline."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from osrerank.types import Deadline

WEIGHT = 0.3
"""Weight of the newest batch in the moving average."""
RELAXED = 0.8
"""Factor on the estimate when a batch is refused, so that a model that was slow once is soon tried again."""


class Throughput:
    """A moving average of seconds per token.

    Threads share it without a lock, because an estimate may miss an update.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds_per_token = 0.0
        self._clock = clock

    @contextlib.contextmanager
    def timed(self, tokens: int) -> Iterator[None]:
        """Add the time of a batch of this many padded tokens to the average."""
        started = self._clock()
        yield
        newest = (self._clock() - started) / max(tokens, 1)
        known = self.seconds_per_token
        self.seconds_per_token = newest if known == 0 else (1 - WEIGHT) * known + WEIGHT * newest

    def budget_tokens(self, most: int, deadline: Deadline) -> int:
        """Return the tokens that a batch may have: at most ``most``, and what a quarter of the time left allows."""
        if deadline.at_s is None or self.seconds_per_token == 0:
            return most
        return max(1, min(most, int(deadline.remaining_s() / 4 / self.seconds_per_token)))

    def allows(self, tokens: int, deadline: Deadline) -> bool:
        """Return whether a batch of this many tokens is expected to end before the deadline."""
        if deadline.is_withdrawn:
            return False
        remaining_s = deadline.remaining_s()
        if remaining_s == math.inf:
            return True
        if remaining_s > tokens * self.seconds_per_token:
            return True
        self.seconds_per_token *= RELAXED
        return False
