"""Run tasks one after another in a background thread, from a bounded queue."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from osrerank._platform import renew_after_fork

MAX_WEIGHT = 16
"""The default maximum total weight of the tasks in a queue."""
CLOSE_S = 10.0
"""The maximum time that `BackgroundTasks.close` waits for tasks before it drops them, in seconds."""

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """A bounded queue of tasks, and the thread that runs them. Safe to use from many threads, and after a fork.

    Args:
        max_weight: the maximum total weight of waiting tasks. A task's weight says how much work it is, for example the
            number of its texts.
        newest_first: the order of the tasks. If True, the newest task runs first, and a full queue drops its oldest
            tasks. If False, the oldest task runs first, and a full queue rejects new tasks.
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
        self._tasks: deque[tuple[Callable[[], object], int]] = deque()  # with their weights, the oldest first
        self._changed = threading.Condition()
        self._is_running = False

    def submit(self, task: Callable[[], object], weight: int = 1) -> bool:
        """Queue a task, and return whether it was accepted. An empty queue accepts a task of any weight."""
        with self._changed:
            while self._newest_first and self._is_too_full_for(weight):
                self._tasks.popleft()
                self._on_drop()
            if self._is_too_full_for(weight):
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

    def _is_too_full_for(self, weight: int) -> bool:
        waiting_weight = sum(waiting for _, waiting in self._tasks)
        return bool(self._tasks) and waiting_weight + weight > self._max_weight

    def close(self) -> None:
        """Wait until all tasks have run. After `CLOSE_S` seconds, drop the unfinished tasks and log their number."""
        n_dropped = self.drain()
        if n_dropped:
            logger.warning(
                "[vectors-lost] dropped %d tasks that encode or write document vectors, unfinished after %g s",
                n_dropped,
                CLOSE_S,
            )

    def drain(self, wait_s: float = CLOSE_S) -> int:
        """Wait at most ``wait_s`` seconds until all tasks have run. Then drop the rest, and return their number.

        The running task counts, too, although it goes on.
        """
        with self._changed:
            if self._changed.wait_for(lambda: not self._is_running, wait_s):
                return 0
            n_dropped = len(self._tasks) + 1
            self._tasks.clear()
            for _ in range(n_dropped):
                self._on_drop()
            return n_dropped

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
