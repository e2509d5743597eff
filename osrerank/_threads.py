"""Run functions in daemon threads that neither delay the interpreter's exit nor crash it.

A thread that returns from C++ or Rust while the interpreter exits aborts the process. Code that can run in a daemon
thread, osrerank's or an application's, therefore calls native code inside the context manager `NATIVE_CODE`. At exit,
`NATIVE_CODE` admits no further thread, and waits until all threads have left.
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

EXIT_TIMEOUT_S = 60.0
"""How long an exit waits for threads in native code, in seconds. No call, such as for one batch, takes longer."""

Result = TypeVar("Result")


class NativeCode:
    """A context manager that counts the threads in native code.

    Raises:
        InferenceError: the interpreter is exiting. Only its main thread can still enter.
    """

    def __init__(self) -> None:
        self._is_exiting = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Reset the count in a forked child, where no other thread is in native code."""
        self._changed = threading.Condition()
        self._n_inside = 0

    def __enter__(self) -> None:
        with self._changed:
            if self._is_exiting and threading.current_thread() is not threading.main_thread():
                raise InferenceError("the Python process is exiting, so it starts no more computations")
            self._n_inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._n_inside -= 1
            if not self._n_inside:
                self._changed.notify_all()

    def wait_for_exit(self) -> None:
        """Admit no further thread, and wait until all have left, even if Ctrl-C is pressed."""
        self._is_exiting = True
        ends_at_s = time.monotonic() + EXIT_TIMEOUT_S
        while time.monotonic() < ends_at_s:
            with contextlib.suppress(KeyboardInterrupt), self._changed:
                if self._changed.wait_for(lambda: not self._n_inside, ends_at_s - time.monotonic()):
                    return


NATIVE_CODE = NativeCode()
"""The process's context manager for calls of native code."""
atexit.register(NATIVE_CODE.wait_for_exit)


class DaemonThreads:
    """A pool of daemon threads, which start on demand and end when the pool is garbage-collected.

    Unlike a ``ThreadPoolExecutor``, it can still be used after the main thread has ended.

    Args:
        max_threads: the maximum number of threads.
        name: the prefix of the threads' names.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._n_idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        finalizer = weakref.finalize(self, self._tasks.put, None)  # None ends the threads
        finalizer.atexit = False  # daemon threads end with the process anyway

    def submit(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Call a function in one of the threads, and return a future with its result.

        Raises:
            RuntimeError: the pool is closed, or its first thread cannot be started.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            # Add the task before starting a thread, because a new thread that finds no task counts as idle.
            self._tasks.put((future, function, arguments))
            if not self._n_idle.acquire(blocking=False) and len(self._threads) < self._max_threads:
                self._start_thread(future)
        return future

    def close(self, *, wait: bool = True) -> None:
        """Refuse further tasks, and cancel those that wait for a thread.

        Args:
            wait: whether to return only when the running tasks have ended.
        """
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(Empty):
            while task := self._tasks.get_nowait():  # stop at the None that ends the threads
                future, _function, _arguments = task
                future.cancel()
        self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _start_thread(self, future: "Future[Any]") -> None:
        """Start a thread. If the pool has no threads and the system cannot start one, cancel the future and raise."""
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_run_tasks, args=(self._tasks, self._n_idle), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                future.cancel()
                raise
        else:
            self._threads.append(thread)


def _run_tasks(tasks: "SimpleQueue[Any]", n_idle: threading.Semaphore) -> None:
    """Run the tasks of a pool in one of its threads, until a task is None."""
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            n_idle.release()
            task = tasks.get()
        if task is None:
            tasks.put(None)  # this ends the next thread
            return
        future, function, arguments = task
        if future.set_running_or_notify_cancel():
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)
        del task, future, function, arguments  # otherwise they stay alive until the next task
