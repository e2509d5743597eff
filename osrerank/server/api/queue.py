"""Run the tasks of many requests in a fair order, and estimate how long a request would wait.

A request is split into tasks of about a tenth of a second, and each request gets its fair share (fair queueing, Demers,
Keshav and Shenker 1989). A small request therefore waits for at most one task of each large one.
"""

import asyncio
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from osrerank._threads import DaemonThreads

Value = TypeVar("Value")

LARGE_AT_ONCE = 8
"""The most tasks of large requests (of several tasks) that run at once; small requests use the other threads."""
TASK_S = 0.1
MIN_TASK_TOKENS = 2_048
MAX_TASK_TOKENS = 65_536
FIRST_TASK_TOKENS = 4_096
"""The number of tokens of a task until the rate is known."""
MEMORY_S = 3.0
"""The seconds of scoring, approximately, over which the rate is averaged."""


@dataclass(frozen=True, slots=True)
class QueuedTask(Generic[Value]):
    """A part of a request, waiting to be scored.

    Attributes:
        tokens: the estimated number of tokens to score.
        compute: the function that returns the task's value; it runs in a thread.
    """

    tokens: int
    compute: Callable[[], Value]


class TokenRate:
    """Measures how many tokens are scored a second; idle time does not count, and recent seconds count most.

    Args:
        clock: returns a monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = self._seconds = self._since = 0.0
        self._running = 0

    def start(self, tokens: int) -> None:
        """Note that the scoring of some tokens has begun."""
        if self._running == 0:
            self._since = self._clock()
        self._running += tokens

    def finish(self, tokens: int) -> None:
        """Note that the scoring of some tokens has ended."""
        now = self._clock()
        passed_s = now - self._since
        decay = math.exp(-passed_s / MEMORY_S)
        self._tokens = self._tokens * decay + tokens
        self._seconds = self._seconds * decay + passed_s
        self._since = now
        self._running -= tokens

    @property
    def tokens_per_s(self) -> float:
        """The rate, with half of the running tokens counted as scored; infinite until something was scored."""
        is_running = self._running > 0
        seconds = self._seconds + (self._clock() - self._since if is_running else 0.0)
        tokens = self._tokens + self._running / 2
        return tokens / seconds if seconds > 0 and tokens > 0 else math.inf


class _Job(Generic[Value]):
    """A request that waits or runs."""

    def __init__(self, tasks: Sequence[QueuedTask[Value]], tag: float) -> None:
        self.waiting = deque(enumerate(tasks))
        self.values: list[Value | None] = [None] * len(tasks)
        self.left = sum(task.tokens for task in tasks)
        self.running = 0
        self.open = len(tasks)
        self.is_large = len(tasks) > 1
        self.tag = tag
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def next_tag(self) -> float:
        return self.tag + self.waiting[0][1].tokens


class TaskQueue:
    """Runs tasks of many requests on threads. All methods are for one event loop.

    Args:
        threads: the maximum number of tasks that run at once.
        clock: returns a monotonic time in seconds.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tasks = threads
        self._threads: DaemonThreads | None = None
        self._jobs: list[_Job[Any]] = []
        self._running = self._running_large = 0
        self._tag = 0.0
        self.rate = TokenRate(clock)

    @property
    def task_tokens(self) -> int:
        """The number of tokens that a task should have."""
        rate = self.rate.tokens_per_s
        if rate == math.inf:
            return FIRST_TASK_TOKENS
        return int(min(max(rate * TASK_S, MIN_TASK_TOKENS), MAX_TASK_TOKENS))

    def wait_s(self, tokens: int) -> float:
        """Estimate how long a new request waits for other requests, in seconds; 0 if nothing runs.

        With fair queueing, each other request gets as many tokens as this one before this one ends, besides its running
        tasks. A request of a single task does not wait for running tasks, because it uses other threads.

        Args:
            tokens: the estimated number of tokens of the request.
        """
        is_large = tokens > self.task_tokens
        ahead = sum(min(job.left, tokens + (job.running if is_large else 0)) for job in self._jobs)
        return ahead / self.rate.tokens_per_s

    async def run(self, tasks: Sequence[QueuedTask[Value]]) -> list[Value]:
        """Run tasks and return their values, in order; a cancelled caller's waiting tasks are dropped.

        Raises:
            Exception: the error of the first task that failed; the waiting tasks are then dropped.
        """
        job = _Job(tasks, self._tag)
        self._jobs.append(job)
        self._start()
        try:
            await job.done
        finally:
            job.waiting.clear()
            if job in self._jobs:
                self._jobs.remove(job)
            self._start()
        return [value for value in job.values if value is not None]

    def close(self) -> None:
        """Wait for running tasks, and end the threads; a later task starts new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()

    def _start(self) -> None:
        """Start waiting tasks while there are threads for them."""
        while (job := self._next()) is not None:
            index, task = job.waiting.popleft()
            self._tag += task.tokens / max(1, len(self._jobs))
            job.tag += task.tokens
            job.running += task.tokens
            self._running += 1
            self._running_large += job.is_large
            self.rate.start(task.tokens)
            self._threads = self._threads or DaemonThreads(self._max_tasks, "osrerank-serve")
            loop = asyncio.get_running_loop()
            try:
                future = asyncio.wrap_future(self._threads.submit(task.compute), loop=loop)
            except RuntimeError as error:  # the system has no more threads
                future = loop.create_future()
                future.set_exception(error)
            future.add_done_callback(functools.partial(self._end, job, index, task))

    def _next(self) -> _Job[Any] | None:
        if self._running >= self._max_tasks:
            return None
        is_full = self._running_large >= min(LARGE_AT_ONCE, self._max_tasks)
        startable = [job for job in self._jobs if job.waiting and not (job.is_large and is_full)]
        return min(startable, key=lambda job: job.next_tag, default=None)

    def _end(self, job: _Job[Any], index: int, task: QueuedTask[Any], done: "asyncio.Future[Any]") -> None:
        self._running -= 1
        self._running_large -= job.is_large
        self.rate.finish(task.tokens)
        job.left -= task.tokens
        job.running -= task.tokens
        job.open -= 1
        error = None if done.cancelled() else done.exception()
        if not job.done.done():
            if error is not None:
                job.done.set_exception(error)
            elif job.open == 0:
                job.values[index] = done.result()
                job.done.set_result(None)
            else:
                job.values[index] = done.result()
        self._start()
