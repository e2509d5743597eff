"""Retry calls to a server that is temporarily busy, restarting or unreachable."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import SSLError, TransportError

from osrerank.errors import LoaderError

T = TypeVar("T")

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""The HTTP statuses after which a request is sent again."""


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How long to retry a call, and how long to pause between attempts.

    Each pause is twice as long as the previous one. Up to 50% is added at random, so that clients do not all retry at
    the same time.

    Attributes:
        first_pause_s: the pause before the first retry, in seconds.
        longest_pause_s: the longest pause, before the random part is added, in seconds.
        give_up_s: the time after which a call is no longer retried, in seconds.
        timeout_s: the timeout of one attempt, in seconds.
        server: the server's name in messages.
        clock: a function that returns the time in seconds.
        sleep: a function that waits for a number of seconds.
    """

    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    give_up_s: float = 300.0
    timeout_s: float = 90.0
    server: str = "OpenSearch"
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def call(self, attempt: Callable[[], T]) -> T:
        """Repeat an attempt until it succeeds, and return its result.

        Raises:
            LoaderError: the server was busy or did not respond for ``give_up_s`` seconds.
            TransportError: the server refused the request for another reason.
        """
        wait = self.start_waits()
        while True:
            try:
                return attempt()
            except TransportError as error:
                if not is_transient(error):
                    raise
                wait(str(error.error))

    def start_waits(self, server: str = "") -> Callable[[str], None]:
        """Return a function that pauses before a retry, such as ``wait("503 Service Unavailable")``.

        The argument is the reason of the failure. Each pause is longer than the previous one. If a pause would end more
        than ``give_up_s`` seconds from now, the function raises `LoaderError` instead, which names ``server`` or, if it
        is empty, the budget's server.
        """
        pause_s, give_up_at_s = self.first_pause_s, self.clock() + self.give_up_s

        def wait(reason: str) -> None:
            nonlocal pause_s
            if self.clock() + pause_s > give_up_at_s:
                raise LoaderError(
                    f"{server or self.server} has not responded for {self.give_up_s:g} s ({reason}); "
                    "no finished work is lost: run the same command again to continue"
                )
            self.sleep(pause_s * random.uniform(1, 1.5))  # noqa: S311 - spreads retries, guards nothing
            pause_s = min(2 * pause_s, self.longest_pause_s)

        return wait


def is_transient(error: TransportError) -> bool:
    """Return whether the same request could succeed later."""
    if isinstance(error, SSLError):
        return False
    return isinstance(error, NoConnection) or error.status_code in RETRIED_STATUSES
