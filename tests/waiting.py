"""Wait where two processes or threads meet: for a condition, with a limit."""

import os
import threading
import time
import warnings
from collections.abc import Callable

from osrerank.testing import FunctionScorer
from osrerank.vectors.background import BackgroundTasks


def wait_until(holds: Callable[[], object], within_s: float = 60.0, said: Callable[[], str] = lambda: "") -> None:
    """Return when the condition holds; fail with what is ``said`` when it does not in time."""
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, f"this does not hold after {within_s:g} s: {said()}"
        time.sleep(0.01)


class HeldScorer(FunctionScorer):
    """A scorer that sets ``begun`` when it starts, and then waits until the test sets ``may_go_on``, at most 30 s."""

    begun: threading.Event
    may_go_on: threading.Event

    def __init__(self) -> None:
        super().__init__(seconds_per_pair=1, sleep=self.wait)  # a pair takes time, so `wait` is called
        object.__setattr__(self, "begun", threading.Event())
        object.__setattr__(self, "may_go_on", threading.Event())

    def wait(self, _seconds: float) -> None:
        self.begun.set()
        assert self.may_go_on.wait(30)


def held(background: BackgroundTasks) -> threading.Event:
    """Keep a background thread busy until the event is set."""
    hold, started = threading.Event(), threading.Event()

    def holding() -> None:
        started.set()
        hold.wait(10)

    assert background.submit(holding)
    assert started.wait(10)
    return hold


def in_a_child(holds: Callable[[], bool]) -> bool:
    """Return whether something holds in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that another test may have left
        child = os.fork()
    if child == 0:
        os._exit(0 if holds() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
