"""A Celery consumer that survives malformed entries in the queue, and never logs texts.

Celery's consumer logs the body of an invalid message, and ends the worker if an entry is not JSON.
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

STOP_CHECK_S = 0.1
"""Time between two checks of whether the worker must stop, in seconds."""

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    """Kombu's Redis channel, but entries of the queue that are not messages are dropped."""

    def _brpop_read(self, **options: Any) -> Any:
        """Read the next entry of the queue, and return whether there was one. Log and remove what is not a message."""
        tags_before = set(self.qos._delivered)  # noqa: SLF001 - Kombu has no public name for it
        try:
            was_read = super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except Empty:
            self.connection.broker.record_success()
            raise
        except (OSError, RedisError):  # the consumer reconnects
            raise
        except Exception as error:  # noqa: BLE001 - a Redis list can contain anything
            _log_refusal("is not a message", error)
            # the entry, if Kombu already waits for its acknowledgement
            for tag in set(self.qos._delivered) - tags_before:  # noqa: SLF001 - see above
                self.basic_reject(tag, requeue=False)  # type: ignore[no-untyped-call]
            return True
        self.connection.broker.record_success()
        return was_read


class Transport(redis.Transport):
    """Kombu's Redis transport with our `Channel`. The consumer sets ``broker`` when it has connected."""

    Channel = Channel
    broker: BrokerHealth


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Celery's consumer, but it logs why it refuses a message without the content, and reconnects without a limit.

    Args:
        broker: the health of the consumer's connection, which the consumer updates.
    """

    def __init__(self, *arguments: Any, broker: BrokerHealth, **options: Any) -> None:
        self.broker = broker
        super().__init__(*arguments, **options)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however many attempts it takes. Celery's consumer gives up after a hundred attempts."""
        while True:
            state.maybe_shutdown()
            try:
                conn.ensure_connection(max_retries=0)
            except OperationalError as error:  # its cause is the error of redis-py
                sleep_unless_stopped(self.broker.record_failure(error.__cause__ or error))
            except (*conn.connection_errors, *conn.channel_errors) as error:
                sleep_unless_stopped(self.broker.record_failure(error))
            else:
                self.first_connection_attempt = False
                conn.transport.broker = self.broker
                return conn

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        sleep_unless_stopped(self.broker.record_failure(exc))

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        super().on_connection_error_after_connected(exc)
        sleep_unless_stopped(self.broker.record_failure(exc))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        _log_refusal("cannot be decoded", exc)
        message.ack_log_error(logger, self.connection_errors)

    def on_unknown_message(self, body: Any, message: Any) -> None:  # noqa: ARG002 - Celery's signature
        _log_refusal("has an unknown format")
        message.reject_log_error(logger, self.connection_errors)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        _log_refusal("requests an unknown task")
        message.reject_log_error(logger, self.connection_errors)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:  # noqa: ARG002 - Celery's signature
        _log_refusal("is not a valid task", exc)
        message.reject_log_error(logger, self.connection_errors)


def sleep_unless_stopped(seconds: float) -> None:
    """Sleep, but raise Celery's shutdown exception as soon as the worker must stop."""
    end_at_s = time.monotonic() + seconds
    while time.monotonic() < end_at_s:
        state.maybe_shutdown()
        time.sleep(min(STOP_CHECK_S, seconds))


def _log_refusal(reason: str, error: Exception | None = None) -> None:
    """Count and log a refused message. ``reason`` completes the sentence, such as "cannot be decoded"."""
    WORKER_CHUNKS.labels("refused").inc()
    error_name = f" ({type(error).__name__})" if error else ""
    logger.warning("[message-refused] a message in the queue %s%s", reason, error_name)
