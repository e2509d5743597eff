"""End a process on SIGTERM or SIGHUP, even if it is a container's first process."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a service. Python itself turns SIGINT into `KeyboardInterrupt`."""


def end_as_first_process() -> None:
    """Let SIGTERM end this process if it is a container's first one.

    Linux ignores a signal for process 1 until the process has a handler.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


@contextmanager
def end_on_signals(end: Callable[[], object] = lambda: sys.exit(0)) -> Iterator[None]:
    """Call a function when SIGTERM or SIGHUP arrives; by default, exit with 0.

    A signal that is ignored stays ignored, as SIGHUP is under `nohup`. Only the main thread can receive signals, so in
    other threads this does nothing.

    Args:
        end: the function that ends what runs; it is called in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    handlers_before = {number: signal.signal(number, lambda *_: end()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
