"""A Celery consumer that survives any entry in the queue and logs no texts.

Celery's own logs the body of a message that it cannot use, and ends the worker when an entry is not JSON.
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
from osrerank_workers.broker_health import BrokerHealth

TICK_S = 0.1
"""Time between two checks for a requested stop, in seconds."""

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    """A channel that drops entries which are not messages."""

    def _brpop_read(self, **options: Any) -> Any:
        tags_before = set(self.qos._delivered)  # noqa: SLF001 - Kombu has no public name for it
        try:
            was_read = super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except Empty:
            self.connection.broker.answered()
            raise
        except (OSError, RedisError):
            raise
        except Exception as error:  # noqa: BLE001 - anything may lie in a Redis list
            _refuse("is not a message", error)
            for tag in set(self.qos._delivered) - tags_before:  # noqa: SLF001 - see above
                self.basic_reject(tag, requeue=False)  # type: ignore[no-untyped-call]
            return True
        self.connection.broker.answered()
        return was_read


class Transport(redis.Transport):
    """Kombu's Redis transport with a `Channel` that drops invalid entries."""

    Channel = Channel
    broker: BrokerHealth


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """A consumer that logs why it refuses a message, but never the content, and that reconnects without a limit.

    Args:
        broker: the health of the consumer's connection; the worker reads it, too.
    """

    def __init__(self, *arguments: Any, broker: BrokerHealth, **options: Any) -> None:
        self.broker = broker
        super().__init__(*arguments, **options)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, without a limit of attempts; Celery's consumer gives up after a hundred."""
        while True:
            state.maybe_shutdown()
            try:
                conn.ensure_connection(max_retries=0)
            except OperationalError as error:  # Kombu raises it from the error of Redis
                wait(self.broker.failed(error.__cause__ or error))
            except (*conn.connection_errors, *conn.channel_errors) as error:
                wait(self.broker.failed(error))
            else:
                self.first_connection_attempt = False
                conn.transport.broker = self.broker
                return conn

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        wait(self.broker.failed(exc))

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        super().on_connection_error_after_connected(exc)
        wait(self.broker.failed(exc))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        _refuse("cannot be decoded", exc)
        message.ack_log_error(logger, self.connection_errors)

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002 - Celery's signature
        _refuse("has an unknown format")
        message.reject_log_error(logger, self.connection_errors)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        _refuse("names an unknown task")
        message.reject_log_error(logger, self.connection_errors)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        _refuse("is not a valid task", exc)
        message.reject_log_error(logger, self.connection_errors)


def wait(seconds: float) -> None:
    """Sleep; stop the worker at once if a stop is requested meanwhile."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        state.maybe_shutdown()
        time.sleep(min(TICK_S, seconds))


def _refuse(problem: str, error: Exception | None = None) -> None:
    """Count a refused message, and log the reason."""
    WORKER_CHUNKS.labels("refused").inc()
    logger.warning(
        "[message-refused] a message in the queue %s%s", problem, f" ({type(error).__name__})" if error else ""
    )
