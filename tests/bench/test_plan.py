"""What `osrerank plan`'s model predicts, beside what real workers take, from 30 to 80 % of what they can do.

make bench TEST_OPTIONS="-k test_plan_and_a_model -s", four minutes on two cores that nothing else uses; the stand-ins
(-k test_plan_and_sleeping) take as long. BENCH_MODEL is another model, BENCH_SECONDS the time of each load. Where other
work goes on, BENCH_PAIR_S=.06 BENCH_SECONDS=36 -k test_plan_and_sleeping still tells something, in eight minutes.

Real workers of one thread each score over a real Redis. The client sends searches at times drawn beforehand, whether
or not earlier ones have ended (open loop), and counts a search's latency from the time at which it was due. The
prediction is for the very times of arrival, so that what chance does to a short run is in both, by the rate that the
same workers have just before. Near what workers can do, a tenth less of it doubles the waits, and a shared machine's
speed changes by more than that within half a minute. So a load is offered in parts of some seconds, each by the rate
just before it, and there is a second prediction, which compares the model alone: by that rate times what a search cost
the workers of processor time in the part, over what it cost before it. Stand-ins that sleep are as fast at any time:
for them there is one part and one prediction, by the rate of the first of them.

Client, Redis and workers share two cores: one worker has a core of its own; two have one each, and their rates are
measured while the client works beside them.
"""

import os
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from osrerank.bench.workload import synthetic
from osrerank.decision.capacity.measure import WAITING_COST, Asked, measure_rate
from osrerank.decision.capacity.predict import Traffic, at_load, scored_s
from osrerank.decision.capacity.rates import Rate
from osrerank.decision.capacity.simulation import Setup
from osrerank.scoring.remote.chunks import LEAST_CHARACTERS
from osrerank.scoring.remote.scorer import RemoteScorer
from tests.workers import STAND_IN, TINY, WorkerGroup

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

MODEL = os.environ.get("BENCH_MODEL", TINY)
DEPTH, WORDS, TASKS = 20, 60, 4
LOADS = (0.3, 0.5, 0.65, 0.8)
SECONDS = float(os.environ.get("BENCH_SECONDS", "18"))
RATE_SECONDS = 3.0
PARTS = 4
"""Of a load for workers that compute: each begins with the rate that they have just then."""
PAIR_S = float(os.environ.get("BENCH_PAIR_S", "0.01"))
SEARCH_TASKS = synthetic(WORDS, queries=24, depth=DEPTH)
WIDTH = sum(map(len, SEARCH_TASKS[0].documents.values())) // LEAST_CHARACTERS


def score(scorer, query, documents):
    assert scorer.score(query, documents, [(at,) for at in range(len(documents))]).reached == len(documents)


def offered(scorer, arrivals):
    """Return the seconds from when each search is due to its end."""
    took = [0.0] * len(arrivals)
    began = time.perf_counter() + 0.2

    def search(number):
        task = SEARCH_TASKS[number % len(SEARCH_TASKS)]
        score(scorer, f"{task.query} {number}", [*task.documents.values()])
        took[number] = time.perf_counter() - began - arrivals[number]

    threads = []
    for number, at in enumerate(arrivals):
        time.sleep(max(0.0, began + at - time.perf_counter()))
        threads.append(threading.Thread(target=search, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return np.array(took)


def cpu_s(group):
    """Return the processor time that the workers have used, in seconds."""
    ticks = 0
    for process in group.processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Part:
    """A load for a time: when searches were due, what they took, and the workers' rates just before and in it."""

    arrivals: np.ndarray
    took_s: np.ndarray
    before: Rate
    in_load: Rate


def offered_part(scorer, setup, rate, load, seed, group):
    """Offer a load by the rate that the workers have just before."""
    before, cost_before_s = beside_others(scorer, group, rate, setup) if group else (rate, 0.0)
    traffic = at_load(Traffic(1.0, DEPTH, first_pass_ms=(1e-6, 1e-6), overhead_ms=0.0), before, setup, load)
    seconds = SECONDS / PARTS if group else SECONDS
    arrivals = traffic.arrivals(np.random.default_rng(seed), round(seconds * traffic.searches_per_s))
    used_s = cpu_s(group) if group else 0.0
    took_s = offered(scorer, arrivals)
    if not group:
        return Part(arrivals, took_s, before, before)
    cost_s = (cpu_s(group) - used_s) / len(arrivals)
    print(
        f"  {DEPTH / before.busy_s(DEPTH):.0f} pairs/s of each before; a search cost {1000 * cost_before_s:.0f} ms of "
        f"CPU before and {1000 * cost_s:.0f} in it; measured p95 {1000 * np.percentile(took_s, 95):.0f} ms"
    )
    in_load = replace(before, together=before.together / WAITING_COST * cost_s / cost_before_s)
    return Part(arrivals, took_s, before, in_load)


def compared(scorer, setup, rate, load, group=None):
    """Offer a load; return predicted and measured 95th percentiles in milliseconds.

    With workers that compute, in parts; what is returned is by their speed in each.
    """
    seed = 100 * round(100 * load) + setup.workers
    parts = [offered_part(scorer, setup, rate, load, seed + 10 * at, group) for at in range(PARTS if group else 1)]
    measured_ms = 1000 * np.percentile(np.concatenate([part.took_s for part in parts]), (50, 95))
    print(
        f"{setup.workers} worker(s), {load:.0%} load, {sum(len(part.arrivals) for part in parts)} searches: "
        f"measured p50 {measured_ms[0]:.0f}, p95 {measured_ms[1]:.0f} ms"
    )
    rng = np.random.default_rng(seed)
    said_ms = measured_ms
    for name in ("before", "in_load") if group else ("before",):
        said = [scored_s(part.arrivals, getattr(part, name), DEPTH, setup, rng) for part in parts]
        said_ms = 1000 * np.percentile(np.concatenate(said), (50, 95))
        off = said_ms / measured_ms - 1
        print(f"  {name}: p50 {said_ms[0]:.0f}, p95 {said_ms[1]:.0f} ms, off by {off[0]:+.0%}, {off[1]:+.0%}")
    return said_ms[1], measured_ms[1]


def said_of(rate):
    return (
        f"{rate.fixed_s * 1000:.1f} ms and {rate.pair_s * 1000:.2f} ms a pair, variation {rate.variation:.2f}, "
        f"{DEPTH / rate.busy_s(DEPTH):.0f} pairs/s of each among others ({rate.together:.2f} of the time alone)"
    )


def measured(scorer, tasks, budget_s=10.0, **options):
    """Return the rate of the only worker."""
    rate = measure_rate(partial(score, scorer), SEARCH_TASKS, DEPTH, budget_s=budget_s, at_a_time=tasks, **options)
    print(f"\na worker: {said_of(rate)}; load average {os.getloadavg()[0]:.1f}")
    return rate


def beside_others(scorer, group, rate, setup):
    """Return a worker's rate with what each of several does while all are busy, and the CPU seconds of a search."""
    asked, used_s = Asked(partial(score, scorer), SEARCH_TASKS), cpu_s(group)
    each_s = asked.per_search_s(DEPTH, (setup.tasks + 1) * setup.workers, RATE_SECONDS) * setup.workers
    cost_s = (cpu_s(group) - used_s) / asked.number
    return replace(rate, together=WAITING_COST * rate.together * each_s / rate.busy_s(DEPTH)), cost_s


def check(scorer, setup, rate, group=None):
    """Offer every load, and compare the 95th percentiles."""
    rows = [compared(scorer, setup, rate, load, group) for load in LOADS]
    print(f"load average {os.getloadavg()[0]:.1f}")
    assert [row for row in rows if not 2 / 3 <= row[0] / row[1] <= 4 / 3] == []


@pytest.mark.parametrize("count", [1, 2])
def test_plan_and_a_model(redis_url, tmp_path, count):
    options = ("--threads", "1", "--tasks", str(TASKS), "--backend", "onnx")
    group = WorkerGroup(redis_url, tmp_path, model=MODEL, options=options)
    cores = sorted(os.sched_getaffinity(0))
    scorer = RemoteScorer(redis_url, MODEL, queue_chunks=64)
    setup = Setup(count, TASKS, width=min(count, WIDTH))
    try:
        start_on(group, cores[:1])
        os.sched_setaffinity(0, set(cores[1:] or cores))
        rate = measured(scorer, TASKS)
        if count == 2:
            start_on(group, cores[1:] or cores)
            os.sched_setaffinity(0, set(cores))
            time.sleep(1.5)  # the client reads the registry once a second
            rate, _ = beside_others(scorer, group, rate, setup)
            print(f"each of two: {said_of(rate)}")
        check(scorer, setup, rate, group)
    finally:
        os.sched_setaffinity(0, set(cores))
        scorer.close()
        group.stop()


def start_on(group, cores):
    """Start a worker on some cores: a process begins on those of the thread that starts it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores))
    group.start(1)
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("count", "tasks", "turn"), [(8, 1, 0), (4, 4, 2)])
def test_plan_and_sleeping_workers(redis_url, tmp_path, count, tasks, turn):
    """More workers than there are cores: stand-ins that sleep for each pair, one chunk at a time or in turns.

    The rate is that of the first of them, measured alone.
    """
    options = ("--seconds-per-pair", str(PAIR_S), "--tasks", str(tasks), "--turn", str(turn))
    group = WorkerGroup(redis_url, tmp_path, model=STAND_IN, module="tests.workers", options=options)
    scorer = RemoteScorer(redis_url, STAND_IN, queue_chunks=64)
    try:
        group.start(1)
        rate = measured(scorer, tasks, 10 + 250 * PAIR_S, waiting_cost=1.0)  # a sleep costs the same at any load
        group.start(count - 1)
        time.sleep(1.5)  # as above
        check(scorer, Setup(count, tasks, width=WIDTH), rate)
    finally:
        scorer.close()
        group.stop()
