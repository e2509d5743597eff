"""What `osrerank plan`'s model predicts, beside what real workers take, from 30 to 80 % of what they can do.

make bench TEST_OPTIONS="-k test_plan -s"; about three and a half minutes on two cores that nothing else uses.

Real workers of one thread each score over a real Redis. The client sends searches at times drawn beforehand, whether
or not earlier ones have ended (open loop), and counts a search's latency from the time at which it was due. The
prediction is made before the load, of rates that were measured at the same workers, for the very times of arrival, so
that what chance does to a short run is in both; and once more for a long run. Client, Redis and workers share two
cores: one worker has a core of its own; two have one each, and their rates are measured while the client works beside
them.
"""

import os
import threading
import time

import numpy as np
import pytest

from osrerank.bench.workload import synthetic
from osrerank.decision.capacity.measure import measure_rate
from osrerank.decision.capacity.predict import Traffic, at_load, predict, scored_s
from osrerank.decision.capacity.simulation import Setup
from osrerank.scoring.remote.chunks import LEAST_CHARACTERS
from osrerank.scoring.remote.scorer import RemoteScorer
from tests.workers import STAND_IN, TINY, WorkerGroup

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

MODEL = os.environ.get("BENCH_MODEL", TINY)
DEPTH, WORDS, TASKS = 20, 60, 4
LOADS = (0.3, 0.5, 0.65, 0.8)
SECONDS = float(os.environ.get("BENCH_SECONDS", "20"))
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


def compared(scorer, rate, setup, load):
    """Offer a load; return its name, and predicted and measured percentiles in milliseconds."""
    traffic = at_load(Traffic(1.0, DEPTH, first_pass_ms=(1e-6, 1e-6), overhead_ms=0.0), rate, setup, load)
    rng = np.random.default_rng(round(100 * load) + setup.workers)
    arrivals = traffic.arrivals(rng, round(SECONDS * traffic.searches_per_s))
    said = 1000 * scored_s(arrivals, rate, DEPTH, setup, rng)
    long_run = predict(traffic, rate, setup)
    before = time.process_time()
    took = 1000 * offered(scorer, arrivals)
    client = (time.process_time() - before) / len(arrivals) * 1000
    row = [*np.percentile(said, (50, 95)), *np.percentile(took, (50, 95)), long_run.p50_ms, long_run.p95_ms]
    print(
        f"{setup.workers} worker(s), {load:.0%} load, {len(arrivals)} searches at {traffic.searches_per_s:.1f}/s: "
        f"predicted p50 {row[0]:.0f}, p95 {row[1]:.0f} ms; measured {row[2]:.0f}, {row[3]:.0f}: "
        f"off by {row[0] / row[2] - 1:+.0%}, {row[1] / row[3] - 1:+.0%}; in a long run {row[4]:.0f}, {row[5]:.0f}; "
        f"client {client:.1f} ms of CPU a search"
    )
    return row


def said_of(rate):
    return (
        f"{rate.fixed_s * 1000:.1f} ms and {rate.pair_s * 1000:.2f} ms a pair, variation {rate.variation:.2f}, "
        f"{DEPTH / rate.busy_s(DEPTH):.0f} pairs/s among others ({rate.together:.2f} of the time alone)"
    )


def measured(scorer, setup, budget_s):
    rate = measure_rate(
        lambda query, documents: score(scorer, query, documents),
        SEARCH_TASKS,
        DEPTH,
        budget_s=budget_s,
        at_a_time=setup.tasks,
        workers=setup.workers,
    )
    print(f"\n{setup.workers} worker(s): {said_of(rate)}; load average {os.getloadavg()[0]:.1f}")
    return rate


def check(scorer, setup, rate):
    """Offer every load, and compare the 95th percentiles."""
    rows = [compared(scorer, rate, setup, load) for load in LOADS]
    assert [row for row in rows if not 2 / 3 <= row[1] / row[3] <= 4 / 3] == []


@pytest.mark.parametrize("count", [1, 2])
def test_plan_predicts_what_workers_of_a_model_take(redis_url, tmp_path, count):
    options = ("--threads", "1", "--tasks", str(TASKS), "--backend", "onnx")
    group = WorkerGroup(redis_url, tmp_path, model=MODEL, options=options)
    cores = sorted(os.sched_getaffinity(0))
    scorer = RemoteScorer(redis_url, MODEL, queue_chunks=64)
    try:
        for number in range(count):
            os.sched_setaffinity(0, {cores[number % len(cores)]})  # the child inherits it
            group.start(1)
        os.sched_setaffinity(0, set(cores[1:] or cores) if count == 1 else set(cores))
        setup = Setup(count, TASKS, width=min(count, WIDTH))
        check(scorer, setup, measured(scorer, setup, 12.0))
    finally:
        os.sched_setaffinity(0, set(cores))
        scorer.close()
        group.stop()


def test_plan_predicts_what_eight_sleeping_workers_take(redis_url, tmp_path):
    """More workers than there are cores: stand-ins that sleep 10 ms a pair, one chunk at a time."""
    group = WorkerGroup(
        redis_url,
        tmp_path,
        model=STAND_IN,
        module="tests.workers",
        options=("--seconds-per-pair", "0.01", "--tasks", "1"),
    )
    scorer = RemoteScorer(redis_url, STAND_IN, queue_chunks=64)
    try:
        group.start(1)
        one = measured(scorer, Setup(1, 1), 8.0)
        group.start(7)
        time.sleep(1.5)  # the client reads the registry once a second
        check(scorer, Setup(8, 1, width=WIDTH), one)
    finally:
        scorer.close()
        group.stop()
