"""What the client adds to a search: request planned, response parsed, ranked and merged; the scorer costs nothing.

make bench TEST_OPTIONS="-k overhead -s"
"""

import random
import statistics
import time

import numpy as np
import pytest

from osrerank import connect
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Scores
from tests.rankings import response_of

pytestmark = pytest.mark.bench

WORDS = [f"word{number}" for number in range(5_000)]
ROUNDS = 30


class FreeScorer(FunctionScorer):
    """Random scores, in no time."""

    def score(self, query, documents, tuples, *, deadline=None):
        values = np.random.default_rng(0).random(len(tuples), dtype=np.float32)
        return Scores(values, inferences=len(tuples))


def text(rng):
    return " ".join(rng.choices(WORDS, k=60))


def median_ms(function):
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        function()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


@pytest.mark.parametrize("depth", [100, 1_000])
def test_time_that_the_client_adds_to_a_search(depth, record_property):
    rng = random.Random(0)
    answer = response_of([text(rng) for _ in range(depth)])
    client = connect("http://localhost:9", scorer=FreeScorer(), transport_class=CannedTransport, answer=answer)
    plain = median_ms(lambda: client.search("word1 word2", index="i", size=depth))
    reranked_ms = median_ms(lambda: client.search("word1 word2", index="i", size=depth, rerank={"depth": depth}))
    print(f"\noverhead at depth {depth}: {reranked_ms - plain:.2f} ms of {reranked_ms:.2f} ms, canned transport")
    assert client.search("word1", index="i", size=depth, rerank={"depth": depth})["rerank"]["applied"] is True
