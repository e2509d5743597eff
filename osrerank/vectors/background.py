"""Run tasks from a bounded queue in a background thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from osrerank._platform import renew_after_fork

MAX_TASKS = 16
"""The largest total weight of waiting tasks, by default."""
CLOSE_S = 10.0
"""How long `Background.close` waits for tasks, in seconds."""

logger = logging.getLogger(__name__)


class Background:
    """A queue whose tasks run one after the other in a thread; safe to use from many threads, and after a fork.

    Args:
        most: the largest total weight of waiting tasks.
        newest_first: whether to run the newest task first, and to drop the oldest task if the queue is full.
        name: the thread's name.
        on_drop: a function that is called for each task that is dropped.
    """

    def __init__(
        self,
        most: int = MAX_TASKS,
        *,
        newest_first: bool = False,
        name: str = "osrerank-vectors",
        on_drop: Callable[[], object] = lambda: None,
    ) -> None:
        self._most, self._newest_first = most, newest_first
        self._name, self._on_drop = name, on_drop
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Empty the queue in a forked child: the parent runs the waiting tasks."""
        self._tasks: deque[tuple[Callable[[], object], int]] = deque()
        self._changed = threading.Condition()
        self._is_running = False

    def submit(self, task: Callable[[], object], weight: int = 1) -> bool:
        """Queue a task; return False if the queue has no room for its weight."""
        with self._changed:
            while self._newest_first and self._tasks and self._waiting_weight + weight > self._most:
                self._tasks.popleft()
                self._on_drop()
            if self._tasks and self._waiting_weight + weight > self._most:
                self._on_drop()
                return False
            self._tasks.append((task, weight))
            if not self._is_running:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError:  # no more threads, or the interpreter is exiting
                    self._tasks.pop()
                    self._on_drop()
                    return False
                self._is_running = True
        return True

    @property
    def _waiting_weight(self) -> int:
        return sum(weight for _, weight in self._tasks)

    def close(self) -> None:
        """Wait until all tasks have run; after `CLOSE_S` seconds, drop the waiting tasks, and log how many."""
        if count := self.drain():
            logger.warning("[vectors-lost] %d tasks of document vectors were not finished after %g s", count, CLOSE_S)

    def drain(self, wait_s: float = CLOSE_S) -> int:
        """Wait at most ``wait_s`` seconds until all tasks have run; drop the others, and return how many they were."""
        with self._changed:
            if self._changed.wait_for(lambda: not self._is_running, wait_s):
                return 0
            dropped_count = len(self._tasks) + 1  # the running task counts, too
            self._tasks.clear()
            for _ in range(dropped_count):
                self._on_drop()
            return dropped_count

    def _work(self) -> None:
        """Run tasks until the queue is empty; then the thread ends."""
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
