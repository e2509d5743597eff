"""Run tasks one after another in a background thread, from a bounded queue."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from osrerank._platform import renew_after_fork

MAX_WEIGHT = 16
"""By default, a queue is full once its tasks have this total weight."""
CLOSE_S = 10.0
"""`BackgroundTasks.close` waits this many seconds for tasks, and then drops them."""

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """A bounded queue of tasks, and the thread that runs them. Safe to use from many threads, and after a fork.

    Args:
        max_weight: the maximum total weight of waiting tasks. A task's weight says how much work it is, such as the
            number of its texts.
        newest_first: whether the newest task runs first. A full queue then drops its oldest tasks to make room.
            Otherwise, a full queue rejects new tasks.
        name: the name of the thread.
        on_drop: a function that is called for each dropped or rejected task.
    """

    def __init__(
        self,
        max_weight: int = MAX_WEIGHT,
        *,
        newest_first: bool = False,
        name: str = "osrerank-vectors",
        on_drop: Callable[[], object] = lambda: None,
    ) -> None:
        self._max_weight, self._newest_first = max_weight, newest_first
        self._name, self._on_drop = name, on_drop
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Empty the queue in a forked child. The parent runs the waiting tasks."""
        self._tasks: deque[tuple[Callable[[], object], int]] = deque()
        self._changed = threading.Condition()
        self._is_running = False

    def submit(self, task: Callable[[], object], weight: int = 1) -> bool:
        """Queue a task. Returns False if it was rejected. An empty queue accepts a task of any weight."""
        with self._changed:
            while self._newest_first and self._tasks and self._waiting_weight + weight > self._max_weight:
                self._tasks.popleft()
                self._on_drop()
            if self._tasks and self._waiting_weight + weight > self._max_weight:
                self._on_drop()
                return False
            self._tasks.append((task, weight))
            if not self._is_running:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError:  # too many threads, or the interpreter is exiting
                    self._tasks.pop()
                    self._on_drop()
                    return False
                self._is_running = True
        return True

    @property
    def _waiting_weight(self) -> int:
        return sum(weight for _, weight in self._tasks)

    def close(self) -> None:
        """Wait until all tasks have run. After `CLOSE_S` seconds, drop the unfinished tasks and log their number."""
        count = self.drain()
        if count:
            logger.warning(
                "[vectors-lost] dropped %d tasks that encode or write document vectors, unfinished after %g s",
                count,
                CLOSE_S,
            )

    def drain(self, wait_s: float = CLOSE_S) -> int:
        """Wait at most ``wait_s`` seconds until all tasks have run. Then drop the others, and return their number."""
        with self._changed:
            if self._changed.wait_for(lambda: not self._is_running, wait_s):
                return 0
            dropped_count = len(self._tasks) + 1  # includes the running task
            self._tasks.clear()
            for _ in range(dropped_count):
                self._on_drop()
            return dropped_count

    def _work(self) -> None:
        """Run tasks until the queue is empty. Then the thread ends, and the next task starts another."""
        while True:
            with self._changed:
                if not self._tasks:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                task, _ = self._tasks.pop() if self._newest_first else self._tasks.popleft()
            try:
                task()
            except BaseException:
                logger.exception("[vectors-lost] a task of document vectors failed")
