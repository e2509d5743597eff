"""Pairs a second by the number of threads, beside one: what more cores bring.

make bench TEST_OPTIONS="-k threads -s"
"""

import os
import statistics
import time

import pytest

from osrerank._platform import usable_cores
from osrerank.bench.workload import pairs, synthetic
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.registry import load_scorer

pytestmark = pytest.mark.bench

MODEL, WORDS, ROUNDS = "osrerank/minilm-l6", 50, 5


def test_pairs_a_second_by_threads() -> None:
    tasks = synthetic(WORDS, queries=2, depth=40)
    counts = sorted({1, 2, usable_cores(), len(os.sched_getaffinity(0))})
    scorers = {threads: load_scorer(MODEL, backend="onnx", threads=threads) for threads in counts}
    taken: dict[int, list[float]] = {threads: [] for threads in counts}
    for turn in range(ROUNDS + 1):  # in turns; the first warms up
        for threads, scorer in scorers.items():
            seconds = _seconds(scorer, tasks)
            if turn:
                taken[threads].append(seconds)
    speeds = {threads: pairs(tasks) / statistics.median(seconds) for threads, seconds in taken.items()}
    for threads, speed in speeds.items():
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"\n{threads} threads: {speed:.1f} pairs/s, {speed / speeds[1]:.2f} times one; {load}")
    for scorer in scorers.values():
        scorer.close()
    assert all(speed > 0 for speed in speeds.values())


def _seconds(scorer: CrossEncoder, tasks: list) -> float:
    began = time.perf_counter()
    for task in tasks:
        texts = list(task.documents.values())
        scorer.score(task.query, texts, [(place,) for place in range(len(texts))])
    return time.perf_counter() - began
