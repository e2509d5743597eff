"""Track whether a worker can use the broker, the Redis through which it receives its chunks."""

import logging
import time
from collections.abc import Callable

from osrerank._pause import Pause
from osrerank.scoring.remote.breaker import PAUSES_S
from osrerank.scoring.remote.broker import explain_broker_failure, read_error_code
from osrerank.scoring.remote.worker_registry import DEAD_AFTER_S

logger = logging.getLogger(__name__)


class BrokerHealth:
    """Counts consecutive failures of the broker, and logs the first one and the recovery.

    Args:
        component: the part of the worker that uses the broker, for the log: ``the consumer`` or ``the heartbeat``.
        clock: a function that returns the time in seconds.
    """

    def __init__(self, component: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._component = component
        self._clock = clock
        self._backoff = Pause(PAUSES_S, clock=clock)
        self._first_failure_at_s = 0.0
        self._error = ""

    def record_failure(self, error: BaseException) -> float:
        """Record a failure, and return how long to pause before the next attempt, in seconds."""
        code = read_error_code(error)
        self._error = f"the broker responds with an error, {code}" if code else "the broker does not respond"
        pause_s = self._backoff.begin(error)
        if self._backoff.failures == 1:
            self._first_failure_at_s = self._clock()
            logger.warning(
                "[broker-away] %s; %s tries again until it works", explain_broker_failure(error), self._component
            )
        return pause_s

    def record_success(self) -> None:
        """Record that a request to the broker succeeded, and log the recovery after failures."""
        failures = self._backoff.failures
        if failures:
            outage_s = self._clock() - self._first_failure_at_s
            logger.info("%s can use the broker again, after %d failures in %.1f s", self._component, failures, outage_s)
            self._backoff.end()

    @property
    def error(self) -> str:
        """The latest error if the broker has failed for more than `DEAD_AFTER_S` seconds, or else ""."""
        is_lasting = self._backoff.failures > 0 and self._clock() - self._first_failure_at_s > DEAD_AFTER_S
        return self._error if is_lasting else ""
