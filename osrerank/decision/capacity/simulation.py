"""A queueing model of the workers: a discrete-event simulation of what each chunk of a search meets.

Chunks wait in one queue, first come, first served. A worker fetches some in advance and scores several at a time, which
share its cores equally (processor sharing: Kleinrock, Queueing Systems, volume 2, 1976, chapter 4), as the batcher's
turns do. A search ends with its last chunk (fork-join). Formulas such as Allen and Cunneen's for G/G/c (Allen,
Probability, Statistics, and Queueing Theory, 1990) know none of the three; where a formula holds, the simulation
agrees with it, see the tests.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from osrerank.scoring.remote.chunks import MOST_PAIRS

POLL_S = 1.0
"""How long a worker asks Redis for a chunk until it asks anew, and stands behind the others (Kombu's BRPOP)."""
WorksOf = Callable[[int, int], Sequence[float]]
"""Number of a search, and among how many workers it is divided -> seconds of each of its chunks."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where searches are scored.

    Attributes:
        workers: that share the queue.
        tasks: chunks that a worker scores at a time; as many more are fetched in advance.
        clients: processes that search; each divides a search by what it has under way itself.
        width: among how many workers a search may be divided, whatever is idle.
    """

    workers: int
    tasks: int
    clients: int = 1
    width: int = 1


class _Chunk(NamedTuple):
    search: int
    work_s: float


class _Worker:
    """A worker whose chunks share it; ``served`` is the time that each of them has had since the beginning."""

    __slots__ = ("active", "at", "fetched", "is_waiting", "served", "version")

    def __init__(self) -> None:
        self.active: list[tuple[float, int, int]] = []  # what `served` is when it ends, order, search
        self.fetched: deque[_Chunk] = deque()
        self.served = self.at = 0.0
        self.version = 0
        self.is_waiting = True

    def advance(self, now: float) -> None:
        if self.active:
            self.served += (now - self.at) / len(self.active)
        self.at = now

    @property
    def ends_at(self) -> float:
        """When the first of its chunks ends, if none comes in between."""
        return self.at + (self.active[0][0] - self.served) * len(self.active)


class _Run:
    """One simulation; its clock goes from event to event."""

    def __init__(self, setup: Setup, works_of: WorksOf, clients: Sequence[int]) -> None:
        self._setup, self._works_of, self._clients = setup, works_of, clients
        count = setup.workers
        self._waiting = [(-POLL_S * place / count, -place, _Worker()) for place in range(count)]  # since when, order
        heapify(self._waiting)
        self._queue: deque[_Chunk] = deque()
        self._events: list[tuple[float, int, int, _Worker]] = []
        self._order = 0
        self._calls = [0] * setup.clients
        self._open = [0] * len(clients)
        self._ends = [math.nan] * len(clients)

    def run(self, arrivals: Sequence[float]) -> list[float]:
        """Return when each search ends."""
        for search, at in enumerate(arrivals):
            self._finish_until(at)
            self._arrive(search, at)
        self._finish_until(math.inf)
        return self._ends

    def _arrive(self, search: int, at: float) -> None:
        client = self._clients[search]
        self._calls[client] += 1
        width = min(self._setup.width, math.ceil(self._setup.workers / self._calls[client]))
        works = self._works_of(search, width)
        self._open[search] = len(works)
        for work_s in works:
            self._send(_Chunk(search, work_s), at)

    def _send(self, chunk: _Chunk, at: float) -> None:
        if not self._waiting:
            self._queue.append(chunk)
            return
        worker = self._next_waiting(at)
        worker.is_waiting = False
        self._take(worker, chunk, at)
        self._wait(worker, at)

    def _next_waiting(self, at: float) -> _Worker:
        """Remove and return the worker that has asked for longest, as Redis serves them.

        So a chunk may go to a busy worker that has room, past an idle one that has just asked anew.
        """
        while (since := self._waiting[0][0]) + POLL_S <= at:
            _, order, worker = self._waiting[0]
            heapreplace(self._waiting, (since + POLL_S * max(1, int((at - since) / POLL_S)), order, worker))
        return heappop(self._waiting)[2]

    def _take(self, worker: _Worker, chunk: _Chunk, at: float) -> None:
        if len(worker.active) < self._setup.tasks:
            self._start(worker, chunk, at)
        else:
            worker.fetched.append(chunk)

    def _wait(self, worker: _Worker, at: float) -> None:
        """Let a worker that has room wait for the next chunk, behind those that wait already."""
        if not worker.is_waiting and len(worker.active) + len(worker.fetched) < 2 * self._setup.tasks:
            worker.is_waiting = True
            self._order += 1
            heappush(self._waiting, (at, self._order, worker))

    def _start(self, worker: _Worker, chunk: _Chunk, at: float) -> None:
        worker.advance(at)
        self._order += 1
        heappush(worker.active, (worker.served + chunk.work_s, self._order, chunk.search))
        self._schedule(worker)

    def _schedule(self, worker: _Worker) -> None:
        """Plan the end of a worker's next chunk; what was planned before is void."""
        worker.version += 1
        self._order += 1
        heappush(self._events, (worker.ends_at, self._order, worker.version, worker))

    def _finish_until(self, limit: float) -> None:
        while self._events and self._events[0][0] <= limit:
            at, _, version, worker = heappop(self._events)
            if version == worker.version:
                self._finish(worker, at)

    def _finish(self, worker: _Worker, at: float) -> None:
        """End a worker's first chunk, and give it the next one."""
        worker.advance(at)
        _, _, search = heappop(worker.active)
        if worker.fetched:
            self._start(worker, worker.fetched.popleft(), at)
        elif worker.active:
            self._schedule(worker)
        if self._queue and not worker.is_waiting:
            self._take(worker, self._queue.popleft(), at)
        self._wait(worker, at)
        self._open[search] -= 1
        if self._open[search] == 0:
            self._ends[search] = at
            self._calls[self._clients[search]] -= 1


def ends_of(arrivals: Sequence[float], setup: Setup, works_of: WorksOf, clients: Sequence[int] = ()) -> list[float]:
    """Return when each search ends, in seconds.

    Args:
        arrivals: when each search is sent, in seconds, ascending.
        setup: what scores them.
        works_of: what each search needs.
        clients: the process that sends each search; by default one sends all.
    """
    return _Run(setup, works_of, clients or [0] * len(arrivals)).run(arrivals)


def sizes_of(pairs: int, width: int) -> list[int]:
    """Return the pairs of each chunk of a search, as `osrerank.scoring.remote.chunks.divide` deals equal documents."""
    sizes: list[int] = []
    while pairs > 0:
        part = min(pairs, width * MOST_PAIRS)
        chunks = min(width, part)
        sizes += [part // chunks + (place < part % chunks) for place in range(chunks)]
        pairs -= part
    return sizes
