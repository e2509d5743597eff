"""Celery's consumer, safe against any entry in the queue, and silent about texts.

Celery logs the body of a message that it cannot use, and one that is not even JSON ends its worker.
"""

import logging
import time
from queue import Empty
from typing import Any

from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.exceptions import OperationalError
from kombu.transport import redis
from redis import RedisError

from osrerank.metrics import WORKER_CHUNKS
from osrerank.scoring.remote.breaker import pause_s

TICK_S = 0.1
"""How often a waiting worker looks whether it is told to stop."""

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    """A channel that drops what is no message."""

    def _brpop_read(self, **options: Any) -> Any:
        before = set(self.qos._delivered)  # noqa: SLF001 - Kombu has no public name for it
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (Empty, OSError, RedisError):
            raise
        except Exception as error:  # noqa: BLE001 - anything may lie in a Redis list
            _refuse("is no message", error)
            for tag in set(self.qos._delivered) - before:  # noqa: SLF001 - see above
                self.basic_reject(tag, requeue=False)  # type: ignore[no-untyped-call]
            return True


class Transport(redis.Transport):
    """Kombu's Redis transport with that channel."""

    Channel = Channel


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """A consumer that logs the kind of what it refuses but not its content, and reconnects soon."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes; Celery's own gives up after a hundred tries."""
        failures = 0
        while True:
            state.maybe_shutdown()
            try:
                conn.ensure_connection(max_retries=0)
            except (OperationalError, *conn.connection_errors, *conn.channel_errors) as error:
                failures += 1
                if failures == 1:
                    logger.warning("[broker-away] no answer from the broker, still trying: %s", type(error).__name__)
                _wait(pause_s(failures))
            else:
                self.first_connection_attempt = False
                return conn

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        _refuse("cannot be decoded", exc)
        message.ack_log_error(logger, self.connection_errors)

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002 - Celery's signature
        _refuse("has no known form")
        message.reject_log_error(logger, self.connection_errors)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        _refuse("names an unknown task")
        message.reject_log_error(logger, self.connection_errors)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        _refuse("is no valid task", exc)
        message.reject_log_error(logger, self.connection_errors)


def _wait(seconds: float) -> None:
    """Sleep, but no longer than until the worker is told to stop."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        state.maybe_shutdown()
        time.sleep(min(TICK_S, seconds))


def _refuse(why: str, error: Exception | None = None) -> None:
    """Count a message that cannot be used, and log its kind."""
    WORKER_CHUNKS.labels("refused").inc()
    logger.warning("[message-refused] a message in the queue %s%s", why, f" ({type(error).__name__})" if error else "")
