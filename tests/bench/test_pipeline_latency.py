"""One search three ways on a real OpenSearch: the first pass alone, reranked by the client, by OpenSearch's pipeline.

make bench TEST_OPTIONS="-k pipeline_latency -s"
"""

import os
import statistics
import time

import pytest
from opensearchpy import OpenSearch

from osrerank import connect
from osrerank.cli.demo import MAPPING, Sample
from osrerank.server.opensearch.install import Installer, Wish
from tests.http_server import running

pytestmark = pytest.mark.bench

INDEX = "pipeline-latency"
QUERIES = 6
MEMORY = "plugins.ml_commons.native_memory_threshold"


@pytest.fixture
def cluster(opensearch_url):
    client = OpenSearch(opensearch_url, timeout=120)
    client.cluster.put_settings(body={"transient": {MEMORY: 100}})
    client.indices.create(index=INDEX, body=MAPPING)
    lines = []
    for document in Sample.load().documents:
        lines += [{"index": {"_index": INDEX, "_id": document["id"]}}, {"text": document["text"]}]
    client.bulk(body=lines, refresh=True)
    yield client
    client.indices.delete(index=INDEX)
    client.cluster.put_settings(body={"transient": {MEMORY: None}})
    client.close()


@pytest.mark.parametrize("window", [20, 100])
def test_latency(cluster, opensearch_url, window):
    client = connect(opensearch_url, timeout=120)
    installer = Installer(cluster, "osrerank")

    def body(query):
        return {"query": {"match": {"text": query}}, "size": window}

    ways = {
        "first pass": lambda query: cluster.search(index=INDEX, body=body(query)),
        "client": lambda query: client.search(
            index=INDEX, body=body(query), rerank={"depth": window, "blend": "replace", "fields": ["text"]}
        ),
        "pipeline": lambda query: cluster.search(
            index=INDEX,
            body={**body(query), "ext": {"rerank": {"query_context": {"query_text": query}}}},
            search_pipeline="osrerank",
        ),
    }
    times = {name: [] for name in ways}
    with running() as url:
        installer.install(Wish(url, "osrerank"))
        try:
            for turn, query in enumerate(list(Sample.load().queries.values())[: QUERIES + 1]):
                for name, search in ways.items():
                    started = time.perf_counter()
                    search(query)
                    if turn:  # the first warms up
                        times[name].append((time.perf_counter() - started) * 1000)
        finally:
            installer.remove()
            client.close()
    medians = ", ".join(f"{name} {statistics.median(values):.0f} ms" for name, values in times.items())
    print(f"\nwindow {window}, {QUERIES} queries, medians: {medians}; load {os.getloadavg()[0]:.1f}")
