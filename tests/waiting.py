"""Wait where two processes or threads meet: for a condition, with a limit."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], within_s: float = 60.0, said: Callable[[], str] = lambda: "") -> None:
    """Return when the condition holds; fail with what is ``said`` when it does not in time."""
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, f"this does not hold after {within_s:g} s: {said()}"
        time.sleep(0.01)
