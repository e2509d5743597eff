"""What a score cache costs: a search whose scores are all cached, against the same first pass; bytes of an entry.

make bench TEST_OPTIONS="-k cache -s"
"""

import os
import random
import statistics
import time
import tracemalloc

import opensearchpy
import pytest

from osrerank import connect
from osrerank.scoring.cache.local import LOCAL_ENTRY_BYTES, LocalStore
from osrerank.scoring.cache.store import REMOTE_ENTRY_BYTES, YOUNG, RemoteStore
from osrerank.scoring.cache.store import connect as connect_redis
from osrerank.testing import FunctionScorer

pytestmark = pytest.mark.bench

WORDS = [f"word{number}" for number in range(5_000)]
INDEX = "cached"
ROUNDS = 25


@pytest.mark.parametrize("where", ["process", "redis"])
def test_cache_serves_a_thousand_candidates(opensearch_url, redis_url, where, monkeypatch):
    rng = random.Random(0)
    monkeypatch.setenv("OSRERANK_CACHE_LOCAL_MB", "16" if where == "process" else "0")
    client = connect(opensearch_url, scorer=FunctionScorer(), redis_url=redis_url)
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    lines = []
    for place in range(1_200):
        lines += [
            {"index": {"_index": INDEX, "_id": str(place)}},
            {"text": "common " + " ".join(rng.choices(WORDS, k=60))},
        ]
    client.bulk(body=lines, refresh=True)
    body = {"query": {"match": {"text": "common word1 word2"}}}
    options = {"depth": 1_000, "fields": ["text"]}
    assert client.search(index=INDEX, body=body, size=1_000, rerank=options)["rerank"]["applied"] is True
    times = {"plain": [], "cached": []}
    for _ in range(ROUNDS):  # in turns, so that both meet the same noise
        started = time.perf_counter()
        opensearchpy.OpenSearch.search(client, index=INDEX, body=body, size=1_000)
        between = time.perf_counter()
        response = client.search(index=INDEX, body=body, size=1_000, rerank=options)
        times["plain"].append(between - started)
        times["cached"].append(time.perf_counter() - between)
        assert response["rerank"]["stages"][0]["cached"] == 1_000
    added = statistics.median(c - p for c, p in zip(times["cached"], times["plain"], strict=True)) * 1000
    print(
        f"\n1,000 candidates, all cached in {where}: {added:.1f} ms more than the search of "
        f"{statistics.median(times['plain']) * 1000:.1f} ms; load {os.getloadavg()[0]:.1f}"
    )
    assert added <= 20
    client.indices.delete(index=INDEX)
    client.close()


def test_cache_entries_take_the_bytes_that_are_reckoned(redis_url):
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    local = LocalStore(1e9)
    local.write({os.urandom(16): float(number) for number in range(100_000)})
    near = (tracemalloc.get_traced_memory()[0] - before) / 100_000
    tracemalloc.stop()
    redis = connect_redis(redis_url)
    redis.delete(YOUNG)
    remote = RemoteStore(redis_url, ttl_s=600, most_bytes=1e9)
    far = 0.0
    for number in range(1, 271):
        remote.write({os.urandom(16): 1.0 for _ in range(1_000)})
        if number > 50:
            far = max(far, redis.memory_usage(YOUNG, samples=0) / (1_000 * number))
    redis.delete(YOUNG)
    redis.close()
    print(f"\nan entry takes {near:.0f} bytes in the process, {far:.0f} in Redis at worst")
    assert near <= LOCAL_ENTRY_BYTES
    assert far <= REMOTE_ENTRY_BYTES
