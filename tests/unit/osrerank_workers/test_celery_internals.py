"""Private names of Celery and Kombu (why: docs/contributing.md), by name: a release that moves one fails here."""

import inspect

import pytest

pytest.importorskip("celery")

from celery.exceptions import WorkerShutdown
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport import redis
from kombu.transport.virtual import QoS
from redis.exceptions import ResponseError


def test_kombu_reads_the_queue_where_we_catch_what_is_no_message():
    assert list(inspect.signature(redis.Channel._brpop_read).parameters) == ["self", "options"]
    assert "loads(" in inspect.getsource(redis.Channel._brpop_read)
    with Connection("memory://") as connection:
        assert len(QoS(connection.default_channel)._delivered) == 0


def test_celery_reports_connection_errors_to_a_consumer_and_reconnects_after_an_error_reply():
    source = inspect.getsource(Consumer.start)
    assert "self.on_connection_error_before_connected(exc)" in source
    assert "self.on_connection_error_after_connected(exc)" in source
    assert "if self.app.conf.broker_channel_error_retry:" in source
    assert issubclass(ResponseError, redis.Transport.channel_errors)


def test_celery_ends_a_worker_with_the_code_of_should_stop(monkeypatch):
    monkeypatch.setattr(state, "should_stop", 1)
    with pytest.raises(WorkerShutdown) as raised:
        state.maybe_shutdown()
    assert raised.value.code == 1


def test_celery_connects_by_ensure_connected_and_kombu_can_try_only_once():
    assert "self.ensure_connected(" in inspect.getsource(Consumer.connection_for_read)
    pauses = []
    with Connection("redis://127.0.0.1:1") as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda _error, pause_s: pauses.append(pause_s), max_retries=0)
    assert pauses == []
