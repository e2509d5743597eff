"""Compare what `osrerank advise` says that searches cost with searches of other queries, with states and without.

    python tools/decision/advice_costs.py embedded:./squad squad queries.tsv --depth 20 --depth 100

Both time one search at a time, without the score cache. The searches are of queries that the advice has not seen; each
is searched once before, so that its documents have states where there are any. Run it on idle cores.
"""

import argparse
import os
import random
import time
from pathlib import Path

import numpy as np

from osrerank import Client, connect
from osrerank.decision.advice.costs import Cost, measure_costs
from osrerank.decision.advice.sample import sampling_options
from osrerank.formats.topics import read_queries
from osrerank.types import Query

BUDGET_S = 120.0


def main() -> None:
    """Print a line for each depth, with states and without."""
    parser = argparse.ArgumentParser(description="What advise says of times, and what other searches take.")
    parser.add_argument("url", help="of the engine")
    parser.add_argument("index")
    parser.add_argument("queries", type=Path)
    parser.add_argument("--model", default="osrerank/mono")
    parser.add_argument("--depth", type=int, action="append", default=[])
    parser.add_argument("--searches", type=int, default=40)
    given = parser.parse_args()
    depths = sorted(given.depth or [20, 100])
    drawn = random.Random(0).sample(read_queries(given.queries), 2 * given.searches)
    for states in ("file", "off"):
        os.environ["OSRERANK_STATES"] = states
        with connect(given.url, model=given.model) as client:
            _compare(client, given.index, drawn[: given.searches], drawn[given.searches :], depths, states)


def _compare(
    client: Client, index: str, queries: list[Query], others: list[Query], depths: list[int], states: str
) -> None:
    options = sampling_options(client.options_of(index), depths[-1])
    if states != "off":
        for query in (*queries, *others):
            client.search(query.text, index=index, rerank=options)
    said = measure_costs(client, index, queries, options, depths, budget_s=BUDGET_S)
    for depth in depths:
        _print(states, depth, said[depth], _searched(client, index, others, depth))


def _searched(client: Client, index: str, queries: list[Query], depth: int) -> tuple[float, float]:
    """Return median and 95th percentile of plain searches in milliseconds."""
    took_ms = []
    for query in queries:
        began = time.perf_counter()
        client.search(query.text, index=index, rerank={"depth": depth, "cache": False})
        took_ms.append((time.perf_counter() - began) * 1000)
    return float(np.percentile(took_ms, 50)), float(np.percentile(took_ms, 95))


def _print(states: str, depth: int, said: Cost, found: tuple[float, float]) -> None:
    ratios = f"{said.p50_ms / found[0]:.2f} and {said.p95_ms / found[1]:.2f}"
    advice = f"advise p50 {said.p50_ms:.1f} ms, p95 {said.p95_ms:.1f} ms ({said.searches} searches)"
    print(
        f"states {states}, depth {depth}: {advice}; other searches {found[0]:.1f} and {found[1]:.1f}; ratios {ratios}"
    )


if __name__ == "__main__":
    main()
