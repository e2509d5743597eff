"""Track whether a part of a worker, the consumer or the heartbeats, can use the broker."""

import logging
import time
from collections.abc import Callable

from osrerank._pause import Pause
from osrerank.scoring.remote.breaker import PAUSES_S
from osrerank.scoring.remote.broker import error_code, explain_failure
from osrerank.scoring.remote.worker_registry import DEAD_AFTER_S

logger = logging.getLogger(__name__)


class BrokerHealth:
    """Counts the broker's consecutive failures, and logs the first one and the recovery.

    Args:
        part: the name of the worker's part, for the log.
        clock: returns seconds; for tests.
    """

    def __init__(self, part: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._part = part
        self._clock = clock
        self._pause = Pause(PAUSES_S, clock=clock)
        self._failing_since = 0.0
        self._error = ""

    def failed(self, error: BaseException) -> float:
        """Record a failure; return how long to pause before the next attempt, in seconds."""
        code = error_code(error)
        self._error = f"the broker answers with an error, {code}" if code else "the broker does not answer"
        pause_s = self._pause.begin(error)
        if self._pause.failures == 1:
            self._failing_since = self._clock()
            logger.warning("[broker-away] %s; %s tries again until it works", explain_failure(error), self._part)
        return pause_s

    def answered(self) -> None:
        """Record that a request to the broker succeeded; after failures, log the recovery."""
        if failures := self._pause.failures:
            seconds = self._clock() - self._failing_since
            logger.info("%s can use the broker again, after %d failures in %.1f s", self._part, failures, seconds)
            self._pause.end()

    @property
    def reason(self) -> str:
        """Why the broker is unusable; empty if it is usable or has failed for `DEAD_AFTER_S` seconds at most."""
        return self._error if self._pause.failures and self._clock() - self._failing_since > DEAD_AFTER_S else ""
