"""What settings cost on this machine: time, cores, memory, and the price of documents' states."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from osrerank.client import Client
from osrerank.decision.advice.sample import percentiles
from osrerank.errors import ConfigError
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.states import coverage
from osrerank.types import Query

LOAD = 0.7
"""Share of the cores that searches may keep busy, so that they seldom wait for one another."""
MOST_SEARCHES = 40
LEAST_SEARCHES = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """What a search costs, one at a time, without the score cache and with documents' states where the model has them.

    Attributes:
        searches: that were timed.
        p50_ms, p95_ms: wall time, with the first pass.
        cpu_s: processor time of this process for a search; an engine or workers elsewhere are not in it.
    """

    searches: int
    p50_ms: float
    p95_ms: float
    cpu_s: float

    def cores(self, searches_per_s: float) -> float:
        """Return the cores for so many searches a second, busy to seven tenths."""
        return self.cpu_s * searches_per_s / LOAD

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StatesPrice:
    """What the states of all documents of an index cost.

    Attributes:
        documents: of the index.
        seconds: to compute them on this machine, about.
        stored: bytes that they take, about.
        share: of the documents that have states already, of those looked at.
    """

    documents: int
    seconds: float
    stored: int
    share: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_costs(
    client: Client, index: str, queries: Sequence[Query], options: Rerank, depths: Sequence[int], *, budget_s: float
) -> dict[int, Cost]:
    """Time searches of each depth, and of the first pass alone as depth 0.

    Each depth gets an equal part of the time, but at least five searches.

    Args:
        client: of the index.
        index: its name.
        queries: whose candidates were scored before, so that their documents' states are there.
        options: as `sampling_options` returns them.
        depths: to time.
        budget_s: seconds for all of them.
    """
    part_s = budget_s / (len(depths) + 1)
    costs = {0: measured_cost(client, index, queries, replace(options, pipeline=NO_STAGES), part_s)}
    return costs | {
        depth: measured_cost(client, index, queries, replace(options, depth=depth), part_s) for depth in sorted(depths)
    }


def measured_cost(client: Client, index: str, queries: Sequence[Query], options: Rerank, budget_s: float) -> Cost:
    """Time searches with the options: forty, or as many as the time allows, but at least five."""
    until_s = time.monotonic() + budget_s
    took_ms: list[float] = []
    began_cpu_s = time.process_time()
    for query in queries[:MOST_SEARCHES]:
        if len(took_ms) >= LEAST_SEARCHES and time.monotonic() >= until_s:
            break
        began = time.perf_counter()
        client.search(query.text, index=index, rerank=options)
        took_ms.append((time.perf_counter() - began) * 1000)
    cpu_s = (time.process_time() - began_cpu_s) / max(1, len(took_ms))
    return Cost(len(took_ms), *percentiles(took_ms), cpu_s)


def states_price(client: Client, index: str) -> StatesPrice | None:
    """Return what the states of an index cost; None where the model has none or they are off."""
    if client.reranker.settings.states == "off":
        return None
    try:
        found = coverage(client, index, most=200)
    except ConfigError:
        return None
    return StatesPrice(found.documents, found.seconds, found.stored, found.share)


def memory_bytes() -> int | None:
    """Return the most memory that this process has had, its model included; None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - not on every system
        import sys  # noqa: PLC0415 - its twin
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def fast_enough(costs: Mapping[int, Cost], limit_ms: float | None) -> list[int]:
    """Return the depths whose 95th percentile is within a limit; all without one."""
    return [depth for depth, cost in costs.items() if depth and (limit_ms is None or cost.p95_ms <= limit_ms)]
