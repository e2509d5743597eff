"""End a service cleanly when SIGTERM or SIGHUP arrives, also in a container."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

END_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a service. Python itself turns SIGINT into `KeyboardInterrupt`."""


def end_as_first_process() -> None:
    """Let SIGTERM end this process even if it is a container's first one, whose unhandled signals Linux ignores."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the status that shells report


@contextmanager
def end_on_signals(end: Callable[[], object] = lambda: sys.exit(0)) -> Iterator[None]:
    """Call a function when SIGTERM or SIGHUP arrives. By default, exit with 0.

    Ignored signals, such as SIGHUP under `nohup`, stay ignored. Outside the main thread, this does nothing, because
    Python runs signal handlers only in the main thread.

    Args:
        end: a function that ends the service. The main thread calls it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, lambda *_: end()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
