"""Measure how fast chunks are scored: alone, in two sizes, and beside others."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence

from osrerank.bench.workload import Task
from osrerank.decision.capacity.rates import Rate

Score = Callable[[str, Sequence[str]], object]
"""Scores documents for a query, and returns when it has."""

ROUNDS = 4
"""Searches of each size, at least."""
SMALL = 4
"""The small chunks have a fourth of the large ones' pairs."""
SHARE_ALONE, SHARE_TOGETHER = 0.55, 0.3
"""Parts of the time; small chunks have the rest."""
WAITING_COST = 1.07
"""What a search costs a worker of processor time that is busy for 30 to 80% of the time, over what it costs one that
always is: the mean of 52 loads of real workers (docs/capacity.md)."""


class Asked:
    """Asks each task's query anew each time, so that nothing that is kept of queries answers it.

    Attributes:
        number: of the searches until now.
    """

    def __init__(self, score: Score, tasks: Sequence[Task]) -> None:
        self._score = score
        self._tasks = [(task.query, [*task.documents.values()]) for task in tasks]
        self._lock = threading.Lock()
        self.number = 0

    def ask(self, pairs: int) -> int:
        """Score the first documents of the next task; return how many they were."""
        with self._lock:
            self.number += 1
            number = self.number
        query, documents = self._tasks[number % len(self._tasks)]
        documents = documents[:pairs]
        self._score(f"{query} {number}", documents)
        return len(documents)

    def times(self, pairs: int, budget_s: float) -> list[tuple[int, float]]:
        """Return pairs and seconds of searches, one after another."""
        until, found = time.monotonic() + budget_s, list[tuple[int, float]]()
        while len(found) < ROUNDS or time.monotonic() < until:
            began = time.perf_counter()
            size = self.ask(pairs)
            found.append((size, time.perf_counter() - began))
        return found

    def per_search_s(self, pairs: int, callers: int, budget_s: float) -> float:
        """Return the seconds between the ends of searches while so many are always under way."""
        ended: list[float] = []
        until = time.monotonic() + budget_s

        def call() -> None:
            while time.monotonic() < until or len(ended) < 2 * callers:
                self.ask(pairs)
                ended.append(time.perf_counter())

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = sorted(ended)[callers - 1 : -(callers - 1) or None]  # all callers are busy
        return (whole[-1] - whole[0]) / (len(whole) - 1)


def measure_rate(
    score: Score,
    tasks: Sequence[Task],
    pairs: int,
    *,
    budget_s: float,
    at_a_time: int,
    waiting_cost: float = WAITING_COST,
) -> Rate:
    """Return the rate of one worker that is busy for a part of the time.

    Args:
        score: of the worker; must be safe to call from threads.
        tasks: queries and their documents, at least ``pairs`` each.
        pairs: of a chunk.
        budget_s: seconds for all, about.
        at_a_time: chunks that the worker scores at a time.
        waiting_cost: what a chunk occupies the worker for, over what it does where the worker is always busy.
    """
    asked = Asked(score, tasks)
    asked.times(pairs, 0.0)  # warm
    alone = asked.times(pairs, SHARE_ALONE * budget_s)
    small = asked.times(max(1, pairs // SMALL), (1 - SHARE_ALONE - SHARE_TOGETHER) * budget_s)
    fixed_s, pair_s = _fitted(alone, small)
    spread = tuple(took_s / (fixed_s + pair_s * size) for size, took_s in alone)
    between_s = asked.per_search_s(pairs, at_a_time, SHARE_TOGETHER * budget_s)
    together = waiting_cost * between_s / statistics.fmean(took_s for _, took_s in alone)
    return Rate(pair_s, fixed_s, spread, together, at_a_time)


def _fitted(large: Sequence[tuple[int, float]], small: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the seconds of a chunk and of a pair, of two sizes' medians."""
    (size, took_s), (less, less_s) = (
        (statistics.fmean(pairs for pairs, _ in times), statistics.median(took for _, took in times))
        for times in (large, small)
    )
    if size <= less or took_s <= less_s:
        return 0.0, took_s / size
    pair_s = min((took_s - less_s) / (size - less), took_s / size)
    return took_s - pair_s * size, pair_s
