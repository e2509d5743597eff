"""What a search costs whose candidates have vectors: 1,000 searches of the bundled sample, or BENCH_SEARCHES, in turn.

make bench TEST_OPTIONS="-k test_vectors -s"
"""

import gzip
import json
import os
import statistics
import time

import pytest
from opensearchpy.helpers import bulk

from osrerank import connect
from osrerank.indexing.build import build_vectors
from osrerank.indexing.documents import document_vectors
from tests.servers import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SAMPLE = ROOT / "osrerank" / "data" / "squad"
SEARCHES = int(os.environ.get("BENCH_SEARCHES", "1000"))
WARM_UP = 2000  # searches before those that are timed: a JVM compiles what has run often
INDEX = "squad"


@pytest.fixture(scope="module", params=["embedded", "opensearch"])
def url(request, tmp_path_factory):
    if request.param == "opensearch":
        return request.getfixturevalue("opensearch_url")
    return f"embedded:{tmp_path_factory.mktemp('vectors')}"


@pytest.fixture(scope="module")
def index_url(url, tmp_path_factory):
    with connect(url) as client:
        fill_sample(client)
    return url


def sample():
    """Return the documents of the bundled sample: id, title and text."""
    return [json.loads(line) for line in gzip.decompress((SAMPLE / "corpus.jsonl.gz").read_bytes()).splitlines()]


def fill_sample(client):
    bulk(client, ({"_index": INDEX, "_id": document.pop("id"), **document} for document in sample()), refresh=True)


def questions():
    """Yield questions that no search has asked before."""
    every = [line.split("\t")[1] for line in (SAMPLE / "queries.tsv").read_text().splitlines()]
    for number in range(SEARCHES):
        yield f"{every[number % len(every)]} {number}"


def took_ms(client, question, rerank, size=10):
    began = time.perf_counter()
    response = client.search(question, index=INDEX, rerank=rerank, size=size)
    assert not rerank or response["rerank"]["applied"] is True
    return (time.perf_counter() - began) * 1000


def show(name, times_ms):
    ordered = sorted(times_ms)
    parts = [ordered[round(share * len(ordered)) - 1] for share in (0.95, 0.99)]
    print(f"{name:<44} {statistics.median(ordered):>9.1f} {parts[0]:>8.1f} {parts[1]:>8.1f}")


@pytest.fixture
def client(index_url, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "folder"  # one engine's vectors serve the next: the texts are the same
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(folder))
    with connect(index_url) as made:
        made.warm_up()
        yield made


def built(client):
    began = time.perf_counter()
    done = build_vectors(client, INDEX)
    print(f"{done}; {done.texts / (time.perf_counter() - began):.1f} texts a second")


def table(client, name, *depths):
    print(f"{'ms a search':<44} {'median':>9} {'p95':>8} {'p99':>8}")
    for question in [*questions()] * (WARM_UP // SEARCHES):
        took_ms(client, question, False, 100), took_ms(client, question, {"depth": 100})
    for depth in depths:
        times = [
            (took_ms(client, question, False, depth), took_ms(client, question, {"depth": depth}))
            for question in questions()
        ]
        show(f"BM25, {depth:,} hits", [plain for plain, _ in times])
        show(f"{name}, depth {depth:,}", [reranked for _, reranked in times])


def test_cold_and_warm_searches_with_vectors(client):
    first = took_ms(client, "what is oxygen used for", {"deadline_ms": None})
    document_vectors(client).records.flush()
    second = took_ms(client, "what is oxygen needed for", True)
    print(f"\nthe first search, the next one, depth 100: {first:.0f}, {second:.0f} ms")
    built(client)
    size = document_vectors(client).store.size()
    print(f"{size.stored_bytes / size.records:.0f} bytes a record")
    table(client, "file", 100, 200, 500, 1000)


def test_searches_with_vectors_in_a_side_index(index_url, no_folder, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))  # so that each search reads the side index
    monkeypatch.setenv("OSRERANK_VECTORS", "index")
    with connect(index_url) as another:
        another.warm_up()
        built(another)
        another.indices.refresh(index=f"osrerank-vectors-{INDEX}")
        table(another, "side index", 100, 1000)
