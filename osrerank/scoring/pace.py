"""How fast a model has been lately, so that a deadline is not overrun by a batch that was never going to fit."""

import contextlib
import math
import time
from collections.abc import Iterator

from osrerank.types import Deadline

WEIGHT = 0.3
"""Of the newest batch in the moving average."""
RELAXED = 0.8
"""What a refusal makes of the estimate: a model that was slow once, while something else ran, is tried again soon."""


class Pace:
    """A moving average of seconds a token.

    Threads share it without a lock: it is an estimate, and a lost update leaves it one.
    """

    def __init__(self) -> None:
        self.seconds_per_token = 0.0

    @contextlib.contextmanager
    def timed(self, tokens: int) -> Iterator[None]:
        """Take the time of a batch of that many padded tokens into the average."""
        started = time.perf_counter()
        yield
        newest = (time.perf_counter() - started) / max(tokens, 1)
        known = self.seconds_per_token
        self.seconds_per_token = newest if known == 0 else (1 - WEIGHT) * known + WEIGHT * newest

    def budget_tokens(self, most: int, deadline: Deadline) -> int:
        """Return how many tokens a batch may have: at most ``most``, and a quarter of the time that is left."""
        if deadline.at_s is None or self.seconds_per_token == 0:
            return most
        return max(1, min(most, int(deadline.remaining_s() / 4 / self.seconds_per_token)))

    def allows(self, tokens: int, deadline: Deadline) -> bool:
        """Return whether a batch of that many tokens can be expected to end before the deadline."""
        remaining_s = deadline.remaining_s()
        if remaining_s == math.inf:
            return True
        if remaining_s > tokens * self.seconds_per_token:
            return True
        self.seconds_per_token *= RELAXED
        return False
