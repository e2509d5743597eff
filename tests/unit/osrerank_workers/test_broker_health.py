"""When a failing broker makes a worker unready, and what the worker logs."""

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ReadOnlyError, ResponseError

from osrerank.scoring.remote.worker_registry import DEAD_AFTER_S
from osrerank.testing import ManualClock
from osrerank_workers.broker_health import BrokerHealth


def test_a_broker_failure_makes_a_worker_unready_only_if_it_lasts():
    clock = ManualClock()
    health = BrokerHealth("the consumer", clock)
    assert health.error == ""
    health.record_failure(NoConnection("Connection refused."))
    assert health.error == ""
    clock.sleep(DEAD_AFTER_S + 0.1)
    assert health.error == "the broker does not respond"
    health.record_failure(ReadOnlyError("You can't write against a read only replica.", status_code="READONLY"))
    assert health.error == "the broker responds with an error, READONLY"
    health.record_success()
    assert health.error == ""


def test_pauses_between_attempts_grow_with_consecutive_failures():
    health = BrokerHealth("the consumer")
    pauses = [health.record_failure(NoConnection()) for _ in range(5)]
    assert 0.25 <= pauses[0] <= 0.5
    assert 2.0 <= pauses[4] <= 4.0
    health.record_success()
    assert health.record_failure(NoConnection()) <= 0.5


def test_the_log_has_the_first_broker_failure_without_redis_words_and_the_recovery(caplog):
    caplog.set_level("INFO")
    health = BrokerHealth("the consumer", ManualClock())
    for _ in range(3):
        health.record_failure(ResponseError("WRONGTYPE Operation against the key of a query"))
    health.record_success()
    health.record_success()
    first, last = caplog.messages
    assert first.startswith("[broker-away] the broker failed (WRONGTYPE): check its log")
    assert "the key of a query" not in first
    assert last == "the consumer can use the broker again, after 3 failures in 0.0 s"
