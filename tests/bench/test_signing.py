"""What signatures of its cached scores cost a search of 100 candidates.

make bench TEST_OPTIONS="-k signatures -s"
"""

import os
import statistics
import time
from collections.abc import Callable

import pytest

from osrerank.scoring.cache.scorer import behind_cache
from osrerank.scoring.cache.store import OLD, YOUNG, connect
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

pytestmark = pytest.mark.bench

KEY = "a-key-of-this-benchmark!"
DOCUMENTS = [" ".join(f"word{number}" for number in range(place, place + 60)) for place in range(100)]
TUPLES = [(place,) for place in range(100)]
ROUNDS, SEARCHES = 5, 40


def milliseconds(action: Callable[[], object]) -> float:
    """Return what a search takes, the mean of several."""
    began = time.perf_counter()
    for _ in range(SEARCHES):
        action()
    return 1000 * (time.perf_counter() - began) / SEARCHES


def medians(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median of rounds in turns, so that all meet the same noise."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            taken[name].append(milliseconds(action))
    return {name: statistics.median(values) for name, values in taken.items()}


def test_signatures_of_scores(redis_url: str) -> None:
    own = {"redis_url": redis_url, "cache_local_mb": 0.0}
    found = {}
    for what, texts in (
        ("100 found", lambda _: DOCUMENTS),
        ("100 new", lambda turn: [f"{turn} {d}" for d in DOCUMENTS]),
    ):
        with connect(redis_url) as redis:
            redis.delete(YOUNG, OLD)
        scorers = {key: behind_cache(FunctionScorer(), Settings.load(**own, cache_key=key)) for key in (None, KEY)}
        turn = iter(range(10**6))
        # Each scorer has texts of its own: neither reads what the other wrote.
        actions = {
            "signed" if key else "unsigned": lambda one=one, key=key, texts=texts, turn=turn: one.score(
                f"query {key}", texts(next(turn)), TUPLES
            )
            for key, one in scorers.items()
        }
        for action in actions.values():
            action()
        found[what] = medians(actions)
        for one in scorers.values():
            one.disconnect()
    for what, times in found.items():
        added = times["signed"] - times["unsigned"]
        print(f"\nsignatures of scores, {what}: {added:.2f} ms added to {times['unsigned']:.2f} ms; {_load()}")
        assert added < 20


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"
