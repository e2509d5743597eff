"""The estimate that keeps a batch from overrunning its deadline."""

import time

import pytest

from osrerank.scoring.pace import RELAXED, Pace
from osrerank.types import NEVER, Deadline


def paced(seconds_per_token):
    pace = Pace()
    pace.seconds_per_token = seconds_per_token
    return pace


def test_without_a_deadline_nothing_is_bounded():
    assert paced(9.0).allows(10**9, NEVER)
    assert paced(9.0).budget_tokens(2048, NEVER) == 2048


def test_a_batch_that_cannot_end_in_time_is_not_begun():
    pace = paced(0.001)
    assert pace.allows(100, Deadline.after_ms(5_000))
    assert not pace.allows(6_000, Deadline.after_ms(5_000))


def test_a_passed_deadline_allows_nothing():
    assert not Pace().allows(1, Deadline(0.0))


def test_a_refusal_is_forgotten_little_by_little():
    pace = paced(0.001)
    assert not pace.allows(300, Deadline.after_ms(200))
    assert pace.seconds_per_token == pytest.approx(0.001 * RELAXED)


def test_batches_are_a_quarter_of_the_time_left():
    assert 900 <= paced(0.001).budget_tokens(2048, Deadline.after_ms(4_000)) <= 1_000
    assert paced(0.001).budget_tokens(50, Deadline.after_ms(4_000)) == 50
    assert paced(1.0).budget_tokens(2048, Deadline.after_ms(1)) == 1


def test_the_average_follows_what_is_measured():
    pace = Pace()
    with pace.timed(10):
        time.sleep(0.02)
    assert pace.seconds_per_token >= 0.0019
    before = pace.seconds_per_token
    with pace.timed(1_000_000):
        pass
    assert pace.seconds_per_token < before
