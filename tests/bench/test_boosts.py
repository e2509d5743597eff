"""What it costs to name the parts of a query with boosts: the first pass as the caller wrote it, and with names.

make bench TEST_OPTIONS="-k naming -s"
"""

import random
import statistics
import time
from collections import defaultdict

import pytest

from osrerank.retrieval.boosts import find_boosts, split_scores
from tests.articles import filled
from tests.drawn_boosts import MAPPINGS, WORDS, goods

pytestmark = [pytest.mark.bench, pytest.mark.integration]

ROUNDS, QUERIES = 10, 50


def test_cost_of_naming_the_clauses_of_a_query(opensearch_url):
    draw = random.Random(3)
    recent = {"gauss": {"added": {"origin": "2025-12-31", "offset": "30d", "scale": "180d"}}}
    sold_out = {"filter": {"term": {"stock": 0}}, "weight": 0.2}
    queries = []
    for _ in range(QUERIES):
        match = {"match": {"title": " ".join(draw.sample(WORDS, 3))}}
        queries.append({"function_score": {"query": match, "functions": [recent, sold_out]}})
    times, told_ms = defaultdict(list), []
    with filled(
        opensearch_url, "naming", goods(2_000), {"settings": {"number_of_shards": 2}, "mappings": MAPPINGS}
    ) as client:
        for _ in range(ROUNDS):
            for number, query in enumerate(queries):
                boosts = find_boosts({"query": query}, {}, "", frozenset())
                named_search = {
                    "params": {"include_named_queries_score": "true"},
                    "body": {"query": boosts.query, "size": 100},
                }
                for name, search in draw.sample(
                    [("own", {"body": {"query": query, "size": 100}}), ("named", named_search)], 2
                ):
                    started = time.perf_counter()
                    answer = client.search(index="naming", **search)
                    times[name, number].append((time.perf_counter() - started) * 1000)
                    if name == "named":
                        started = time.perf_counter()
                        assert not isinstance(split_scores(answer, boosts)[0], str)
                        told_ms.append((time.perf_counter() - started) * 1000)
    own_ms, named_ms = (
        statistics.median(min(times[name, number]) for number in range(QUERIES)) for name in ("own", "named")
    )
    print(
        f"\n100 hits of 2,000 documents: {own_ms:.1f} ms, with names {named_ms:.1f} ms; the check {min(told_ms):.2f} ms"
    )
