"""Plan for a load: workers for whole pairs, processes where documents have states, GPUs, and what is stored."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from osrerank.decision.capacity.predict import (
    SEARCHES,
    Prediction,
    Traffic,
    at_load,
    least_workers,
    load_of,
    predict,
)
from osrerank.decision.capacity.rates import Rate, Rates
from osrerank.decision.capacity.simulation import Setup
from osrerank.decision.capacity.storage import Storage, storage
from osrerank.scoring.remote.chunks import LEAST_CHARACTERS
from osrerank.settings import Settings

LOADS = (0.3, 0.5, 0.7, 0.8)
HIT_RATES = (0.2, 0.5)
"""Shares of cached searches that are planned for besides."""
MANY = 1_000
"""Chunks at a time of a process that searches: it takes what comes."""
ROOM = 0.97
"""Load from which on a queue grows too long to be told by a simulation of a few thousand searches."""
GPU_TASKS = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a plan.

    Attributes:
        traffic: searches.
        p95_ms: limit of the 95th percentile of a search.
        documents: of the collection; None where they do not matter.
        clients: processes that search.
        gpu_pairs_per_s: what a GPU scores; None where nobody measured it.
        seed: of the simulations.
        searches: of each simulation.
    """

    traffic: Traffic
    p95_ms: float
    documents: int | None = None
    clients: int = 1
    gpu_pairs_per_s: float | None = None
    seed: int = 0
    searches: int = SEARCHES


@dataclass(frozen=True, slots=True)
class Choice:
    """The least that keeps the limit, one way.

    Attributes:
        name: ``workers``, ``states`` or ``gpus``.
        threads: CPU threads of each; 0 for a GPU, or where they are not known.
        found: None where no number keeps the limit.
        alone: a search while nobody else searches, with as many workers as may share it.
        by_load: the same number at other loads.
        by_workers: the same load with other numbers; those that it is too much for are left out.
        by_hit_rate: share of cached searches, and the least number.
    """

    name: str
    threads: int
    found: Prediction | None
    alone: Prediction
    by_load: tuple[Prediction, ...] = ()
    by_workers: tuple[Prediction, ...] = ()
    by_hit_rate: tuple[tuple[float, int], ...] = ()

    @property
    def cores(self) -> int:
        """Of all of them; 0 where there are none, or nobody knows."""
        return self.found.workers * self.threads if self.found else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "cores": self.cores}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load needs.

    Attributes:
        wanted: what was asked.
        rates: of one worker.
        workers: for whole pairs.
        states: for documents with states, scored by the processes that search; None where the model has none.
        gpus: for whole pairs on GPUs; None where no rate was given.
        storage: what is stored.
    """

    wanted: Wanted
    rates: Rates
    workers: Choice
    states: Choice | None
    gpus: Choice | None
    storage: Storage


def make_plan(wanted: Wanted, rates: Rates, settings: Settings) -> Plan:
    """Return what a load needs.

    Args:
        wanted: what is asked.
        rates: of one worker, measured or given.
        settings: of the score cache.
    """
    width = max(1, int(min(wanted.traffic.depth * rates.document_characters, 1e9)) // LEAST_CHARACTERS)
    setup = Setup(1, rates.whole.tasks, clients=wanted.clients, width=width)
    gpus = None
    if wanted.gpu_pairs_per_s is not None:
        rate = replace(rates.whole, pair_s=1 / wanted.gpu_pairs_per_s, fixed_s=0.0, together=1.0, tasks=GPU_TASKS)
        gpus = _chosen("gpus", 0, wanted, rate, replace(setup, tasks=GPU_TASKS))
    return Plan(
        wanted,
        rates,
        workers=_chosen("workers", rates.threads, wanted, rates.whole, setup),
        states=_with_states(wanted, rates),
        gpus=gpus,
        storage=storage(wanted.traffic, rates, settings, wanted.documents),
    )


def _with_states(wanted: Wanted, rates: Rates) -> Choice | None:
    """Plan for processes that score themselves what has states; their overhead occupies them, too."""
    if rates.states is None:
        return None
    traffic = wanted.traffic
    known = rates.states.known
    rate = replace(known, fixed_s=known.fixed_s + traffic.overhead_ms / 1000, tasks=MANY)
    own = replace(wanted, traffic=replace(traffic, overhead_ms=0.0))
    return _chosen("states", rates.threads, own, rate, Setup(1, MANY), rates.states.encode_s)


def _chosen(name: str, threads: int, wanted: Wanted, rate: Rate, setup: Setup, encode_s: float = 0.0) -> Choice:
    """Return the least number and what it gives."""
    traffic = wanted.traffic
    given: dict[str, Any] = {"encode_s": encode_s, "seed": wanted.seed, "searches": wanted.searches}
    found = least_workers(traffic, rate, setup, wanted.p95_ms, **given)
    quiet = replace(setup, workers=setup.width)
    alone = predict(at_load(traffic, rate, quiet, 0.01, encode_s), rate, quiet, **given)
    if found is None:
        return Choice(name, threads, None, alone)
    chosen = replace(setup, workers=found.workers)
    by_load = [predict(at_load(traffic, rate, chosen, load, encode_s), rate, chosen, **given) for load in LOADS]
    others = [replace(setup, workers=count) for count in _numbers_beside(found.workers)]
    by_workers = [
        predict(traffic, rate, other, **given) for other in others if load_of(traffic, rate, other, encode_s) < ROOM
    ]
    more_hits = [replace(traffic, hit_rate=share) for share in HIT_RATES if share > traffic.hit_rate]
    by_hits = [(one.hit_rate, least_workers(one, rate, setup, wanted.p95_ms, **given)) for one in more_hits]
    return Choice(
        name,
        threads,
        found,
        alone,
        tuple(by_load),
        tuple(by_workers),
        tuple((share, one.workers) for share, one in by_hits if one),
    )


def _numbers_beside(workers: int) -> Iterator[int]:
    """Yield numbers of workers beside the least: a few less, a few more, and half as many more."""
    step = max(1, round(workers / 10))
    yield from sorted({max(1, workers - step), workers + step, math.ceil(1.5 * workers)} - {workers})
