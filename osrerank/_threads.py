"""Daemon threads that neither delay the interpreter's exit nor crash it.

A thread that returns from C++ or Rust while the interpreter exits aborts the process. So all code that may run in a
daemon thread, osrerank's or an application's, calls native code inside `NATIVE_CODE`. At exit, no other thread may
enter it, and the interpreter waits until none is inside.
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

MAX_WAIT_S = 60.0
"""The longest time that the interpreter waits at exit for native code, in seconds: longer than any batch takes."""

Value = TypeVar("Value")


class NativeCode:
    """A context manager that counts the threads in native code.

    Raises:
        InferenceError: the interpreter is exiting; only its main thread may still enter.
    """

    def __init__(self) -> None:
        self._is_ending = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over in a forked child, where no other thread is in native code."""
        self._changed = threading.Condition()
        self._inside = 0

    def __enter__(self) -> None:
        with self._changed:
            if self._is_ending and threading.current_thread() is not threading.main_thread():
                raise InferenceError("Python is exiting, so no computation can start")
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    def end(self) -> None:
        """Let no other thread enter, and wait until none is inside, even if Ctrl-C is pressed meanwhile."""
        self._is_ending = True
        ends_at = time.monotonic() + MAX_WAIT_S
        while (left_s := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(KeyboardInterrupt), self._changed:
                if self._changed.wait_for(lambda: not self._inside, left_s):
                    return


NATIVE_CODE = NativeCode()
atexit.register(NATIVE_CODE.end)


class DaemonThreads:
    """A pool of daemon threads, which start on demand and end when the pool is garbage-collected.

    Unlike a ``ThreadPoolExecutor``, it also works for threads that outlive the main thread.

    Args:
        max_threads: the maximum number of threads at a time.
        name: the prefix of the threads' names.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads, self._name = max_threads, name
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started: list[threading.Thread] = []
        self._is_closed = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, task: Callable[..., Value], *arguments: Any) -> "Future[Value]":
        """Run a task in a thread, and return its future.

        Raises:
            RuntimeError: the pool is closed, or its first thread cannot be started.
        """
        future: Future[Value] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            # before a thread starts, because a thread that finds no task counts as idle
            self._tasks.put((future, task, arguments))
            if not self._idle.acquire(blocking=False) and len(self._started) < self._max_threads:
                self._start(future)
        return future

    def close(self, *, wait: bool = True) -> None:
        """Refuse further tasks, and cancel those that wait for a thread.

        Args:
            wait: whether to return only when the running tasks have ended.
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
        thread = threading.Thread(target=_run_tasks, args=arguments, name=f"{self._name}_{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            if not self._started:
                first.cancel()
                raise
        else:
            self._started.append(thread)


def _run_tasks(tasks: "SimpleQueue[Any]", idle: threading.Semaphore) -> None:
    """Run tasks until None comes; set each task's value or error in its future."""
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
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
            else:
                future.set_result(value)
        del task, future, function, arguments  # otherwise they stay alive until the next task comes
