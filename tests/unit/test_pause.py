"""The pause after a failure of a remote part."""

from osrerank._pause import Pause


def fail():
    raise OSError("away")


def test_a_pause_begins_with_a_failure_and_ends_by_itself():
    now, reports = [0.0], []
    pause = Pause(10.0, lambda error, is_first: reports.append((str(error), is_first)), lambda: now[0])
    assert pause.attempt(lambda: 1, 0) == 1
    assert pause.attempt(fail, 0) == 0
    now[0] = 9.9
    assert pause.is_on
    assert pause.attempt(lambda: 1, 0) == 0
    pause.begin(OSError("at the same time"))
    assert reports == [("away", True), ("at the same time", False)]
    now[0] = 19.8
    assert pause.is_on
    now[0] = 19.9
    assert pause.attempt(lambda: 1, 0) == 1
