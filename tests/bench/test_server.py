"""What HTTP costs: concurrent callers against one call in the process, and the overhead of one request.

make bench TEST_OPTIONS="-k server -s"
"""

import http.client
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from osrerank.cli.demo import Sample
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank.types import Scores
from tests.http_server import running

pytestmark = pytest.mark.bench

CALLERS = 16
DOCUMENTS = 20
ROUNDS = 3
LEAST_SHARE = 0.85
MOST_OVERHEAD_MS = 10.0


class FreeScorer(FunctionScorer):
    """Random scores, in no time."""

    def score(self, query, documents, tuples, *, deadline=None):
        values = np.random.default_rng(0).random(len(tuples), dtype=np.float32)
        return Scores(values, inferences=len(tuples))


class Caller:
    """A client with a connection that stays open."""

    def __init__(self, url):
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"))

    def rerank(self, query, documents):
        body = json.dumps({"query": query, "documents": documents})
        self._connection.request("POST", "/v1/rerank", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = json.load(answer)
        assert answer.status == 200, content
        return content

    def close(self):
        self._connection.close()


def load():
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def test_throughput_of_concurrent_callers():
    sample = Sample.load()
    queries = list(sample.queries.values())[:CALLERS]
    texts = [document["text"] for document in sample.documents[: CALLERS * DOCUMENTS]]
    shares = [texts[place * DOCUMENTS : (place + 1) * DOCUMENTS] for place in range(CALLERS)]
    reranker = RerankService(Settings.load())
    scorer = reranker.scorer()
    with running(scorer) as url, ThreadPoolExecutor(CALLERS) as pool:

        def call(query, documents):
            caller = Caller(url)
            caller.rerank(query, documents)
            caller.close()

        def over_http():
            list(pool.map(call, queries, shares))

        def in_process():
            scorer.score(queries[0], texts, [(place,) for place in range(len(texts))])

        over_http()
        in_process()
        times = [(seconds(in_process), seconds(over_http)) for _ in range(ROUNDS)]
    reranker.close()
    local, remote = (statistics.median(column) for column in zip(*times, strict=True))
    pairs = CALLERS * DOCUMENTS
    print(
        f"\n{CALLERS} callers of {DOCUMENTS}: {pairs / remote:.0f} pairs/s over HTTP, {pairs / local:.0f} in one call, "
        f"{local / remote:.0%}; {load()}"
    )
    assert local / remote >= LEAST_SHARE


@pytest.mark.parametrize("count", [20, 100, 1_000])
def test_overhead_of_a_request(count):
    texts = [document["text"] for document in Sample.load().documents[:count]]
    with running(FreeScorer()) as url:
        caller = Caller(url)
        for _ in range(5):
            caller.rerank("which plague", texts)
        times = [seconds(lambda: caller.rerank("which plague", texts)) * 1000 for _ in range(50)]
        caller.close()
    median = statistics.median(times)
    size = sum(map(len, texts)) / 1000
    print(f"\nHTTP with {count} documents of {size:.0f} kB: {median:.1f} ms median, no scoring; {load()}")
    if count == 100:
        assert median <= MOST_OVERHEAD_MS
