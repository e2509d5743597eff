"""Share the scoring threads fairly among rerank requests, and estimate how long a new request would wait.

Each request is split into tasks that take about 0.1 s. Fair queueing (Demers, Keshav and Shenker 1989) scores all
requests at the same speed: the queue starts the task that would end first if all requests were scored in parallel. A
small request thus waits for at most one task of each large request.
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

MAX_LARGE_TASKS = 8
"""The maximum number of tasks of large requests that run at once. The other threads are kept free for small requests,
which are those of a single task."""
TASK_S = 0.1
"""The time that a task should take, in seconds. At 50,000 tokens per second, a task gets 5,000 tokens."""
MIN_TASK_TOKENS = 2_048
MAX_TASK_TOKENS = 65_536
INITIAL_TASK_TOKENS = 4_096
"""The number of tokens in a task until the rate has been measured."""
AVERAGING_S = 3.0
"""The time constant of the average rate: a task that ended this many seconds of scoring ago counts 1/e as much as one
that ends now."""


@dataclass(frozen=True, slots=True)
class QueuedTask(Generic[Value]):
    """A part of a request.

    Attributes:
        tokens: the estimated number of tokens to score.
        compute: a function that scores the part and returns its value. It is called in another thread.
    """

    tokens: int
    compute: Callable[[], Value]


class TokenRate:
    """An exponential moving average of the number of tokens scored per second. Idle time does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._decayed_tokens = 0.0
        self._decayed_s = 0.0
        self._updated_at_s = 0.0
        self._running_tokens = 0

    def start(self, tokens: int) -> None:
        """Record that a task of this many tokens begins."""
        if self._running_tokens == 0:
            self._updated_at_s = self._clock()
        self._running_tokens += tokens

    def finish(self, tokens: int) -> None:
        """Record that a task of this many tokens has ended."""
        ended_at_s = self._clock()
        elapsed_s = ended_at_s - self._updated_at_s
        decay = math.exp(-elapsed_s / AVERAGING_S)
        self._decayed_tokens = self._decayed_tokens * decay + tokens
        self._decayed_s = self._decayed_s * decay + elapsed_s
        self._updated_at_s = ended_at_s
        self._running_tokens -= tokens

    @property
    def tokens_per_s(self) -> float:
        """The average rate, or infinity before the first task. Running tasks are assumed to be half done."""
        elapsed_s = self._decayed_s
        if self._running_tokens > 0:
            elapsed_s += self._clock() - self._updated_at_s
        tokens = self._decayed_tokens + self._running_tokens / 2
        return tokens / elapsed_s if elapsed_s > 0 and tokens > 0 else math.inf


class _Job(Generic[Value]):
    """The tasks of one request.

    Fair queueing measures a virtual time in tokens: how many tokens of each request would have been scored by now if
    all requests were scored in parallel. If two requests are in progress, a task of 100 tokens advances the virtual
    time by 50.

    Attributes:
        waiting: the index and the task of each task that has not started.
        values: the value of each task, or None until the task has ended.
        finish_tag: the virtual time at which the tasks started so far would end.
        completion: a future that is done when all tasks have ended, or when one has failed.
    """

    def __init__(self, tasks: Sequence[QueuedTask[Value]], virtual_time: float) -> None:
        self.waiting = deque(enumerate(tasks))
        self.values: list[Value | None] = [None] * len(tasks)
        self.remaining_tokens = sum(task.tokens for task in tasks)
        self.running_tokens = 0
        self.n_unfinished_tasks = len(tasks)
        self.is_large = len(tasks) > 1
        self.finish_tag = virtual_time
        self.completion: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def next_finish_tag(self) -> float:
        """The virtual time at which the first waiting task would end."""
        _index, task = self.waiting[0]
        return self.finish_tag + task.tokens


class TaskQueue:
    """Runs the tasks of many requests in threads. All methods must be called in one event loop.

    Args:
        threads: the maximum number of tasks that run at once.
        clock: a function that returns a monotonic time in seconds.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tasks = threads
        self._threads: DaemonThreads | None = None
        self._jobs: list[_Job[Any]] = []
        self._n_running_tasks = 0
        self._n_running_large_tasks = 0
        self._virtual_time = 0.0
        self.rate = TokenRate(clock)

    @property
    def task_tokens(self) -> int:
        """The number of tokens that a task should have, so that it takes `TASK_S`."""
        rate = self.rate.tokens_per_s
        if rate == math.inf:
            return INITIAL_TASK_TOKENS
        return int(min(max(rate * TASK_S, MIN_TASK_TOKENS), MAX_TASK_TOKENS))

    def estimate_wait_s(self, tokens: int) -> float:
        """Estimate how long a new request of this many tokens would wait for the requests in progress, in seconds.

        All requests are scored at the same speed. A new request of 100 tokens thus waits for 100 tokens of a request
        that has 1,000 left, and for all 30 of one that has 30 left. A large request also waits for the running tasks. A
        request of a single task does not, because threads are kept free for it.
        """
        is_large = tokens > self.task_tokens
        tokens_ahead = 0
        for job in self._jobs:
            running_tokens = job.running_tokens if is_large else 0
            tokens_ahead += min(job.remaining_tokens, tokens + running_tokens)
        return tokens_ahead / self.rate.tokens_per_s

    async def run(self, tasks: Sequence[QueuedTask[Value]]) -> list[Value]:
        """Run the tasks of a request, and return their values in the order of the tasks.

        If a task fails or the caller is cancelled, the tasks that have not started are dropped.

        Raises:
            Exception: the error of the first task that failed.
        """
        job = _Job(tasks, self._virtual_time)
        self._jobs.append(job)
        self._start_tasks()
        try:
            await job.completion
        finally:
            job.waiting.clear()
            self._jobs.remove(job)
            self._start_tasks()
        return [value for value in job.values if value is not None]  # all tasks have ended, so no value is None

    def close(self) -> None:
        """Wait for the running tasks, and end the threads. A later task starts new ones."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()

    def _start_tasks(self) -> None:
        """Start tasks until the threads are busy or no task is waiting."""
        while True:
            job = self._next_job()
            if job is None:
                return
            index, task = job.waiting.popleft()
            self._virtual_time += task.tokens / len(self._jobs)
            job.finish_tag += task.tokens
            job.running_tokens += task.tokens
            self._n_running_tasks += 1
            self._n_running_large_tasks += job.is_large
            self.rate.start(task.tokens)
            self._threads = self._threads or DaemonThreads(self._max_tasks, "osrerank-serve")
            loop = asyncio.get_running_loop()
            try:
                future = asyncio.wrap_future(self._threads.submit(task.compute), loop=loop)
            except RuntimeError as error:  # the system has no more threads
                future = loop.create_future()
                future.set_exception(error)
            future.add_done_callback(functools.partial(self._finish_task, job, index, task))

    def _next_job(self) -> _Job[Any] | None:
        """Return the job whose next task should start, or None if no task can start now."""
        if self._n_running_tasks >= self._max_tasks:
            return None
        can_start_large = self._n_running_large_tasks < min(MAX_LARGE_TASKS, self._max_tasks)
        startable = [job for job in self._jobs if job.waiting and (can_start_large or not job.is_large)]
        return min(startable, key=lambda job: job.next_finish_tag, default=None)

    def _finish_task(self, job: _Job[Any], index: int, task: QueuedTask[Any], future: "asyncio.Future[Any]") -> None:
        self._n_running_tasks -= 1
        self._n_running_large_tasks -= job.is_large
        self.rate.finish(task.tokens)
        job.remaining_tokens -= task.tokens
        job.running_tokens -= task.tokens
        job.n_unfinished_tasks -= 1
        error = None if future.cancelled() else future.exception()
        if not job.completion.done():
            if error is not None:
                job.completion.set_exception(error)
            else:
                job.values[index] = future.result()
                if job.n_unfinished_tasks == 0:
                    job.completion.set_result(None)
        self._start_tasks()
