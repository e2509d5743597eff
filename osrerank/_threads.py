"""Threads that neither hold up the end of the interpreter nor abort it.

A thread that returns from C++ or Rust while the interpreter ends aborts the process. So whatever may run in a daemon
thread of ours, or of an application, enters such code through `NATIVE_CODE`: the interpreter waits at its end until
nobody is in there, and nobody gets in afterwards.
"""

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from osrerank._platform import renew_after_fork
from osrerank.errors import InferenceError

MOST_WAIT_S = 60.0
"""How long the interpreter waits at its end for native code that runs, in seconds: longer than any batch takes."""

Value = TypeVar("Value")


class NativeCode:
    """Counts the threads that are in native code, for a ``with`` statement.

    Raises:
        InferenceError: the interpreter is ending; only its main thread may still enter.
    """

    def __init__(self) -> None:
        self._is_ending = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over in a forked child, where nobody else is in native code."""
        self._changed = threading.Condition()
        self._inside = 0

    def __enter__(self) -> None:
        with self._changed:
            if self._is_ending and threading.current_thread() is not threading.main_thread():
                raise InferenceError("nothing is computed any more, because Python is ending")
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    def end(self) -> None:
        """Let nobody in any more, and wait until nobody is inside, even if Ctrl-C is pressed meanwhile."""
        self._is_ending = True
        ends_at = time.monotonic() + MOST_WAIT_S
        while (left_s := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(KeyboardInterrupt), self._changed:
                if self._changed.wait_for(lambda: not self._inside, left_s):
                    return


NATIVE_CODE = NativeCode()
atexit.register(NATIVE_CODE.end)


class DaemonThreads:
    """Runs tasks in daemon threads, which start as they are needed and end when nobody has this object any more.

    Unlike a ``ThreadPoolExecutor`` it also works for threads that outlive the main one.

    Args:
        most: how many threads there may be.
        name: begins the name of each.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started: list[threading.Thread] = []
        self._is_closed = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, task: Callable[..., Value], *arguments: Any) -> "Future[Value]":
        """Return the future of a task.

        Raises:
            RuntimeError: the threads were closed, or there is none and none can be started.
        """
        future: Future[Value] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            self._tasks.put((future, task, arguments))  # before a thread starts, which is idle when it finds nothing
            if not self._idle.acquire(blocking=False) and len(self._started) < self._most:
                self._start(future)
        return future

    def close(self, *, wait: bool = True) -> None:
        """Refuse further tasks; those that wait for a thread are cancelled.

        Args:
            wait: whether to return only when the running ones have ended.
        """
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(Empty):
            while task := self._tasks.get_nowait():
                task[0].cancel()
        self._tasks.put(None)
        for thread in self._started if wait else ():
            thread.join()

    def _start(self, first: "Future[Any]") -> None:
        number = len(self._started)
        arguments = self._tasks, self._idle
        thread = threading.Thread(target=_work, args=arguments, name=f"{self._name}_{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            if not self._started:
                first.cancel()
                raise
        else:
            self._started.append(thread)


def _work(tasks: "SimpleQueue[Any]", idle: threading.Semaphore) -> None:
    """Run tasks until None comes; what a task raises reaches whoever has its future."""
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            idle.release()
            task = tasks.get()
        if task is None:
            tasks.put(None)  # for the next thread
            return
        future, function, arguments = task
        if future.set_running_or_notify_cancel():
            try:
                value = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is asked
                future.set_exception(error)
            else:
                future.set_result(value)
        del task, future, function, arguments  # the last one would be kept alive until the next comes
