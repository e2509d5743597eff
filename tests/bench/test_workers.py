"""What workers cost and bring: overhead over this process, requests that share a model, scaling, overload.

make bench TEST_OPTIONS="-k workers -s"; one worker and its client share the machine's cores.
"""

import os
import random
import resource
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from osrerank.errors import Overloaded
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.types import Deadline
from tests.workers import STAND_IN, worker_group

pytestmark = pytest.mark.bench

MODEL = "osrerank/mono"
QUERY = "what causes low blood pressure"


def paragraphs(count):
    """Return texts of about a paragraph's length."""
    rng = random.Random(0)
    words = (
        "salt",
        "water",
        "pressure",
        "blood",
        "wing",
        "heat",
        "flow",
        "rest",
        "of",
        "the",
        "in",
        "and",
        "was",
        "by",
    )
    return [" ".join(rng.choices(words, k=rng.randint(30, 90))) for _ in range(count)]


def load_note():
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def timed(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


@pytest.fixture
def one_worker(redis_url, tmp_path):
    with worker_group(redis_url, tmp_path, model=MODEL, options=("--backend", "onnx")):
        scorer = RemoteScorer(redis_url, MODEL, queue_chunks=64)
        scorer.score("warm", ["up"], [(0,)])
        yield scorer
        scorer.close()


def test_workers_overhead(one_worker):
    local = load_scorer(MODEL, backend="onnx")
    texts = paragraphs(100)
    tuples = [(n,) for n in range(100)]
    times = {"local": [], "remote": []}
    for _ in range(15):  # in turns, so that both meet the same noise
        times["local"].append(timed(lambda: local.score(QUERY, texts, tuples)))
        times["remote"].append(timed(lambda: one_worker.score(QUERY, texts, tuples)))
    added = statistics.median(r - lo for r, lo in zip(times["remote"], times["local"], strict=True)) * 1000
    share = statistics.median(times["local"]) / statistics.median(times["remote"])
    print(
        f"\n100 candidates: in process {statistics.median(times['local']) * 1000:.0f} ms, one worker adds {added:.1f} "
        f"ms (median of differences), throughput {share:.1%}; {load_note()}"
    )
    assert added <= 15
    assert share >= 0.95


def test_workers_of_many_clients_share_batches(one_worker):
    texts = paragraphs(320)
    whole, shared = [], []
    with ThreadPoolExecutor(16) as threads:
        for _ in range(7):
            whole.append(timed(lambda: one_worker.score(QUERY, texts, [(n,) for n in range(320)])))
            shared.append(
                timed(
                    lambda: list(
                        threads.map(
                            lambda at: one_worker.score(QUERY, texts[at : at + 20], [(n,) for n in range(20)]),
                            range(0, 320, 20),
                        )
                    )
                )
            )
    rate = statistics.median(w / s for w, s in zip(whole, shared, strict=True))
    print(
        f"\n16 clients of 20 candidates: {rate:.1%} of the throughput of one with 320 "
        f"({320 / statistics.median(whole):.0f} pairs/s); {load_note()}"
    )
    assert rate >= 0.85


def stand_in_rate(scorer, clients, seconds):
    """Return pairs scored a second, and this process' CPU seconds for each pair."""
    texts = [text[:340] for text in paragraphs(100)]
    tuples = [(n,) for n in range(100)]
    ended = threading.Event()
    counts = [0] * clients

    def search(number):
        while not ended.is_set():
            counts[number] += scorer.score(QUERY, texts, tuples).reached

    threads = [threading.Thread(target=search, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    before, cpu, started = sum(counts), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    pairs, spent = sum(counts) - before, time.process_time() - cpu
    rate = pairs / (time.perf_counter() - started)
    ended.set()
    for thread in threads:
        thread.join()
    return rate, spent / pairs


def test_workers_scaling_of_a_stand_in(redis_url, tmp_path):
    """A stand-in that sleeps half a millisecond a pair: what is measured is the transport."""
    rates = {}
    for workers in (1, 2, 4, 8):
        folder = tmp_path / str(workers)
        with worker_group(redis_url, folder, workers, model=STAND_IN, module="tests.workers") as group:
            scorer = RemoteScorer(redis_url, STAND_IN, queue_chunks=64)
            time.sleep(1.0)
            rates[workers], cpu = stand_in_rate(scorer, 3 * workers, 6.0)
            scorer.close()
            group.stop()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"\n{workers} stand-in workers: {rates[workers]:.0f} pairs/s, client {cpu * 1e6:.0f} us of CPU a pair, "
            f"workers {children.ru_utime + children.ru_stime:.1f} s of CPU so far; {load_note()}"
        )
    print(f"from 1 to 8 stand-in workers: {rates[8] / rates[1]:.2f}x")
    assert rates[8] >= 7 * rates[1]


def test_workers_bound_their_queue_under_three_times_the_load(redis_url, tmp_path):
    """One stand-in worker serves 20 searches of 100 pairs a second; 60 are sent, each with a second."""
    texts = [text[:340] for text in paragraphs(100)]
    tuples = [(n,) for n in range(100)]
    full, refused, late = [], [], []

    def search(scorer):
        started = time.perf_counter()
        try:
            scores = scorer.score(QUERY, texts, tuples, deadline=Deadline.after_ms(1_000))
        except Overloaded:
            refused.append(time.perf_counter() - started)
            return
        (full if scores.reached == 100 else late).append(time.perf_counter() - started)

    with worker_group(redis_url, Path(tmp_path), model=STAND_IN, module="tests.workers"):
        scorer = RemoteScorer(redis_url, STAND_IN, queue_chunks=64)
        for _ in range(10):
            search(scorer)
        time.sleep(1.0)
        full.clear()
        threads = []
        for _ in range(600):
            threads.append(threading.Thread(target=search, args=(scorer,)))
            threads[-1].start()
            time.sleep(1 / 60)
        for thread in threads:
            thread.join()
        scorer.close()
    print(
        f"\nthree times the load for 10 s: {len(full)} whole in {max(full):.2f} s at most, {len(refused)} refused in "
        f"{statistics.median(refused) * 1000:.1f} ms (median), {len(late)} cut short in {max(late, default=0):.2f} s "
        f"at most; {load_note()}"
    )
    assert refused
    assert statistics.median(refused) < 0.05
    assert max(full + late) <= 1.05
