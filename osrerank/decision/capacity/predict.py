"""Predict the latency of searches at a load, and the workers that keep it below a limit."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.decision.capacity.rates import Rate
from osrerank.decision.capacity.simulation import Setup, ends_of, sizes_of

Times = npt.NDArray[np.float64]

SEARCHES = 5_000
"""Of a simulation; the first tenth is not counted."""
MOST_LOAD = 0.8
"""The greatest load that is planned for: up to it the model was compared with real workers."""
MOST_WORKERS = 10_000
NORMAL_95 = 1.6449
"""The 95th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked.

    Attributes:
        searches_per_s: on average.
        depth: candidates of a search.
        hit_rate: share of the searches whose scores are all cached; no worker sees them.
        burstiness: coefficient of variation of the times between searches; 1 for independent users (Poisson).
        first_pass_ms: median and 95th percentile of the first pass.
        overhead_ms: what else a search takes: transport, merging.
        known: share of the candidates that have states, where those are used.
    """

    searches_per_s: float
    depth: int
    hit_rate: float = 0.0
    burstiness: float = 1.0
    first_pass_ms: tuple[float, float] = (6.0, 12.0)
    overhead_ms: float = 6.0
    known: float = 1.0

    def arrivals(self, rng: np.random.Generator, count: int) -> Times:
        """Return when searches arrive, in seconds; the times between them have a gamma distribution."""
        if self.burstiness == 0:
            return np.arange(1, count + 1) / self.searches_per_s
        shape = 1 / self.burstiness**2
        return np.cumsum(rng.gamma(shape, 1 / (shape * self.searches_per_s), count))

    def first_passes_s(self, rng: np.random.Generator, count: int) -> Times:
        """Return the times of first passes, log-normal."""
        median, high = (value / 1000 for value in self.first_pass_ms)
        return median * np.exp(rng.standard_normal(count) * math.log(high / median) / NORMAL_95)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a search meets at a load.

    Attributes:
        workers: that score.
        searches_per_s: the load.
        load: share of the time that the workers are busy.
        p50_ms, p95_ms, p99_ms: latency of a search, first pass and overhead among it.
    """

    workers: int
    searches_per_s: float
    load: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Works:
    """What each search needs of workers, drawn beforehand; and which part of its time it does not occupy them."""

    def __init__(self, rate: Rate, depth: int, spread: Sequence[float], extra_s: Sequence[float]) -> None:
        self._rate, self._depth, self._spread, self._extra_s = rate, depth, spread, extra_s
        self._alone: dict[int, list[float]] = {}
        self.idle_s = [0.0] * len(spread)

    def __call__(self, search: int, width: int) -> list[float]:
        if width not in self._alone:
            self._alone[width] = [self._rate.alone_s(size) for size in sizes_of(self._depth, width)]
        alone, spread = self._alone[width], self._spread
        taken = [one * spread[(search + 7919 * place) % len(spread)] for place, one in enumerate(alone)]
        taken[0] += self._extra_s[search]
        self.idle_s[search] = max(0.0, 1 - self._rate.together) * max(taken)
        return [one * self._rate.together for one in taken]


def scored_s(
    arrivals: Times, rate: Rate, depth: int, setup: Setup, rng: np.random.Generator, *, extra_s: Times | None = None
) -> Times:
    """Return how long each search waits for its scores, in seconds.

    Args:
        arrivals: when they are asked for, ascending.
        rate: of a worker.
        depth: pairs of a search.
        setup: the workers.
        rng: draws the chunks' times and which process asks.
        extra_s: time of a worker that each search needs besides.
    """
    count = len(arrivals)
    spread = rng.choice(rate.spread, count).tolist()
    works = _Works(rate, depth, spread, [0.0] * count if extra_s is None else extra_s.tolist())
    clients = rng.integers(setup.clients, size=count).tolist()
    ends = ends_of(arrivals.tolist(), setup, works, clients)
    took_s: Times = np.asarray(ends) - arrivals + np.asarray(works.idle_s)
    return took_s


def predict(
    traffic: Traffic, rate: Rate, setup: Setup, *, encode_s: float = 0.0, seed: int = 0, searches: int = SEARCHES
) -> Prediction:
    """Return what searches meet.

    Args:
        traffic: what is asked.
        rate: of a worker.
        setup: the workers.
        encode_s: what a candidate without states takes besides; 0 where states are not used.
        seed: of all that is drawn.
        searches: to simulate.
    """
    rng = np.random.default_rng(seed)
    arrivals = traffic.arrivals(rng, searches)
    first_s = traffic.first_passes_s(rng, searches)
    asked = rng.random(searches) >= traffic.hit_rate
    extra_s = np.asarray(encode_s * rng.binomial(traffic.depth, 1 - traffic.known, searches), dtype=np.float64)
    waited_s = np.zeros(searches)
    waited_s[asked] = traffic.overhead_ms / 1000 + scored_s(
        arrivals[asked], rate, traffic.depth, setup, rng, extra_s=extra_s[asked]
    )
    took_ms = 1000 * (first_s + waited_s)[searches // 10 :]
    p50, p95, p99 = (float(value) for value in np.percentile(took_ms, (50, 95, 99)))
    return Prediction(setup.workers, traffic.searches_per_s, load_of(traffic, rate, setup, encode_s), p50, p95, p99)


def busy_s(traffic: Traffic, rate: Rate, encode_s: float = 0.0) -> float:
    """Return the seconds of a worker that a search takes on average, cached ones among them."""
    chunks = sum(rate.busy_s(size) for size in sizes_of(traffic.depth, 1))
    return (1 - traffic.hit_rate) * (chunks + traffic.depth * (1 - traffic.known) * encode_s * rate.together)


def load_of(traffic: Traffic, rate: Rate, setup: Setup, encode_s: float = 0.0) -> float:
    """Return the share of the time that workers are busy."""
    return traffic.searches_per_s * busy_s(traffic, rate, encode_s) / setup.workers


def at_load(traffic: Traffic, rate: Rate, setup: Setup, load: float, encode_s: float = 0.0) -> Traffic:
    """Return the same traffic, as much of it as makes workers busy for such a share of the time."""
    return replace(traffic, searches_per_s=load * setup.workers / busy_s(traffic, rate, encode_s))


def least_workers(
    traffic: Traffic,
    rate: Rate,
    setup: Setup,
    p95_ms: float,
    *,
    encode_s: float = 0.0,
    seed: int = 0,
    searches: int = SEARCHES,
) -> Prediction | None:
    """Return what the fewest workers give whose 95th percentile is within a limit, busy to four fifths at most.

    None means that no number of workers does: a search takes too long even where nobody else searches.

    Args:
        traffic: what is asked.
        rate: of a worker.
        setup: the workers; their number is replaced.
        p95_ms: the limit.
        encode_s: what a candidate without states takes besides.
        seed: of all that is drawn.
        searches: to simulate for each number of workers.
    """
    given: dict[str, Any] = {"encode_s": encode_s, "seed": seed, "searches": searches}

    def tried(workers: int) -> Prediction:
        return predict(traffic, rate, replace(setup, workers=workers), **given)

    least = max(1, math.ceil(load_of(traffic, rate, replace(setup, workers=1), encode_s) / MOST_LOAD))
    low, high = least - 1, least
    while (found := tried(high)).p95_ms > p95_ms:
        if high >= min(4 * least + setup.width, MOST_WORKERS):
            return None
        low, high = high, min(2 * high, 4 * least + setup.width, MOST_WORKERS)
    while high - low > 1:
        middle = (low + high) // 2
        if (one := tried(middle)).p95_ms <= p95_ms:
            high, found = middle, one
        else:
            low = middle
    return found
