"""The estimate that keeps a batch from overrunning its deadline."""

import pytest

from osrerank.scoring.batcher import RELAXED, Throughput
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Deadline


def measured(seconds_per_token):
    throughput = Throughput()
    throughput.seconds_per_token = seconds_per_token
    return throughput


def test_without_a_deadline_nothing_is_bounded():
    assert measured(9.0).allows(10**9, NEVER)
    assert measured(9.0).budget_tokens(2048, NEVER) == 2048


def test_a_batch_that_cannot_end_in_time_is_not_begun():
    throughput = measured(0.001)
    assert throughput.allows(100, Deadline.after_ms(5_000))
    assert not throughput.allows(6_000, Deadline.after_ms(5_000))


def test_a_passed_deadline_allows_nothing():
    assert not Throughput().allows(1, Deadline(0.0))


def test_a_refusal_is_forgotten_little_by_little():
    throughput = measured(0.001)
    assert not throughput.allows(300, Deadline.after_ms(200))
    assert throughput.seconds_per_token == pytest.approx(0.001 * RELAXED)


def test_batches_are_a_quarter_of_the_time_left():
    deadline = Deadline.after_ms(4_000, ManualClock())
    assert measured(0.0078125).budget_tokens(2048, deadline) == 128
    assert measured(0.0078125).budget_tokens(50, deadline) == 50
    assert measured(4.0).budget_tokens(2048, deadline) == 1


def test_the_average_follows_what_is_measured():
    clock = ManualClock()
    throughput = Throughput(clock)
    with throughput.timed(10):
        clock.sleep(20)
    assert throughput.seconds_per_token == 2.0
    with throughput.timed(10):
        clock.sleep(10)
    assert throughput.seconds_per_token == pytest.approx(0.7 * 2.0 + 0.3 * 1.0)
