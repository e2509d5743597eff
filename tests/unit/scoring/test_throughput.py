"""The estimate that keeps a batch from overrunning its deadline."""

import time

import pytest

from osrerank.scoring.throughput import RELAXED, Throughput
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
    assert 900 <= measured(0.001).budget_tokens(2048, Deadline.after_ms(4_000)) <= 1_000
    assert measured(0.001).budget_tokens(50, Deadline.after_ms(4_000)) == 50
    assert measured(1.0).budget_tokens(2048, Deadline.after_ms(1)) == 1


def test_the_average_follows_what_is_measured():
    throughput = Throughput()
    with throughput.timed(10):
        time.sleep(0.02)
    assert throughput.seconds_per_token >= 0.0019
    before = throughput.seconds_per_token
    with throughput.timed(1_000_000):
        pass
    assert throughput.seconds_per_token < before
