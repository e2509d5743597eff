"""Celery's consumer, safe against any entry in the queue, and silent about texts.

Celery logs the body of a message that it cannot use, and one that is not even JSON ends its worker.
"""

import logging
from functools import partial
from queue import Empty
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.transport import redis
from redis import RedisError

from osrerank.metrics import WORKER_CHUNKS

SOON = {"interval_start": 0.1, "interval_step": 0.2, "interval_max": 1.0}
"""Seconds between tries to connect; Celery's own begin with two and grow to thirty."""

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
        conn.ensure_connection = partial(conn.ensure_connection, **SOON)
        return super().ensure_connected(conn)

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


def _refuse(why: str, error: Exception | None = None) -> None:
    """Count a message that cannot be used, and log its kind."""
    WORKER_CHUNKS.labels("refused").inc()
    logger.warning("a message in the queue %s%s", why, f" ({type(error).__name__})" if error else "")
