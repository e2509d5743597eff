"""Work that no search waits for."""

import os
import sys
import threading
from functools import partial

import pytest

from osrerank.vectors.background import Background
from tests.waiting import in_a_child


def test_tasks_run_in_order_and_closing_waits_for_them() -> None:
    background, done = Background(most=20), list[int]()
    assert all(background.submit(partial(done.append, number)) for number in range(20))
    background.close()
    assert done == list(range(20))
    assert background.submit(lambda: done.append(20))  # it begins again
    background.close()
    assert done[-1] == 20


def held(background: Background) -> threading.Event:
    """Keep it busy until the event is set."""
    hold, started = threading.Event(), threading.Event()

    def holding() -> None:
        started.set()
        hold.wait(10)

    assert background.submit(holding)
    assert started.wait(10)
    return hold


def test_beyond_the_bound_tasks_are_left_out() -> None:
    background = Background(most=2)
    hold = held(background)
    assert [background.submit(lambda: None) for _ in range(3)] == [True, True, False]
    hold.set()
    background.close()


def test_the_newest_may_come_first_and_the_oldest_make_room() -> None:
    background, done = Background(most=10, newest_first=True), list[int]()
    hold = held(background)
    for number, weight in enumerate((4, 4, 4, 2)):
        assert background.submit(partial(done.append, number), weight)
    hold.set()
    background.close()
    assert done == [3, 2, 1]


def test_a_task_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    background, done = Background(), list[int]()
    background.submit(lambda: 1 // 0)
    background.submit(sys.exit)
    background.submit(lambda: done.append(1))
    background.close()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_none_of_its_parents_tasks() -> None:
    background, hold = Background(), threading.Event()
    background.submit(lambda: hold.wait(10))

    def works() -> bool:
        done: list[int] = []
        background.submit(lambda: done.append(1))
        background.close()
        return done == [1]

    assert in_a_child(works)
    hold.set()
    background.close()
