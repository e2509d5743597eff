"""Run tasks from a bounded queue in a background thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from osrerank._platform import renew_after_fork

MOST_TASKS = 16
"""The largest total weight of waiting tasks, by default."""
CLOSE_S = 10.0
"""How long `Background.close` waits for unfinished tasks, in seconds."""

logger = logging.getLogger(__name__)


class Background:
    """Runs tasks one after the other in a thread; safe to use from many threads, and after a fork.

    Args:
        most: the largest total weight of waiting tasks.
        newest_first: whether to run the newest task first, and to drop the oldest if there is no room.
        name: the thread's name.
        dropped: called once for each task that is dropped.
    """

    def __init__(
        self,
        most: int = MOST_TASKS,
        *,
        newest_first: bool = False,
        name: str = "osrerank-vectors",
        dropped: Callable[[], object] = lambda: None,
    ) -> None:
        self._most, self._newest_first = most, newest_first
        self._name, self._dropped = name, dropped
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over without tasks in a forked child: waiting tasks belong to the parent."""
        self._tasks: deque[tuple[Callable[[], object], int]] = deque()
        self._changed = threading.Condition()
        self._is_running = False

    def submit(self, task: Callable[[], object], weight: int = 1) -> bool:
        """Queue a task to run in the background; return whether there was room for its weight."""
        with self._changed:
            while self._newest_first and self._tasks and self._waiting + weight > self._most:
                self._tasks.popleft()
                self._dropped()
            if self._tasks and self._waiting + weight > self._most:
                self._dropped()
                return False
            self._tasks.append((task, weight))
            if not self._is_running:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError:  # no more threads, or the interpreter is exiting
                    self._tasks.pop()
                    self._dropped()
                    return False
                self._is_running = True
        return True

    @property
    def _waiting(self) -> int:
        return sum(weight for _, weight in self._tasks)

    def close(self) -> None:
        """Wait until all tasks have run, at most `CLOSE_S` seconds; then drop those that still wait, and log it."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_running, CLOSE_S):
                logger.warning(
                    "[vectors-lost] %d tasks of document vectors were dropped, because they still waited after %g s",
                    len(self._tasks),
                    CLOSE_S,
                )
                self._tasks.clear()

    def drain(self, wait_s: float = CLOSE_S) -> int:
        """Wait until all tasks have run, at most ``wait_s`` seconds; drop the others, and return how many they were."""
        with self._changed:
            if self._changed.wait_for(lambda: not self._is_running, wait_s):
                return 0
            left = len(self._tasks) + 1  # and the one that runs
            self._tasks.clear()
            for _ in range(left):
                self._dropped()
            return left

    def _work(self) -> None:
        """Run tasks until none is left; the thread then ends."""
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
