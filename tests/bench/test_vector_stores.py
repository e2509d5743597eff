"""Vectors in a side index and in a field of the document itself: what each adds to the first pass on OpenSearch.

make bench TEST_OPTIONS="-k state_places -s"
"""

import base64
import time

import pytest
from opensearchpy.helpers import bulk

from osrerank import connect
from osrerank.indexing.documents import vectors_of
from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.index import READ_AT_ONCE, RecordRequests
from tests.bench.test_vectors import questions, sample, show

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SEARCHES = 300
PLAIN, FIELD = "plain", "with-vectors"


@pytest.fixture(scope="module")
def client(opensearch_url, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path_factory.mktemp("vectors")))
    with connect(opensearch_url) as made:
        yield made
    patch.undo()


@pytest.fixture(scope="module")
def keys(client):
    """Index the sample without and with its vectors in each document; return each document's key."""
    vectors = vectors_of(client)
    documents = {one["id"]: one["text"] for one in sample()}
    vectors.remember(list(documents.values()))
    keys = dict(zip(documents, vectors.keys_of(list(documents.values())), strict=True))
    records = vectors.store.read(list(keys.values()))
    IndexStore(client, PLAIN, is_embedded=False).write(records)
    binary = {"type": "binary", "doc_values": True}
    mapping = {"_source": {"excludes": ["vectors"]}, "properties": {"vectors": binary}}
    client.indices.create(index=FIELD, body={"mappings": mapping})
    texts = [(name, doc_id, text) for name in (PLAIN, FIELD) for doc_id, text in documents.items()]
    sources = ({"_index": name, "_id": one, **_source(name, text, records, keys[one])} for name, one, text in texts)
    bulk(client, sources)
    client.indices.refresh(index="_all")
    return keys


def _source(name, text, records, key):
    vectors = {"vectors": base64.b64encode(records[key]).decode()} if name == FIELD else {}
    return {"text": text, **vectors}


def first_pass(client, index, question, depth, **more):
    body = {"query": {"match": {"text": question}}, "size": depth, **more}
    return client.transport.perform_request("POST", f"/{index}/_search", body=body)["hits"]["hits"]


def beside(client, keys, question, depth):
    hits = first_pass(client, PLAIN, question, depth)
    form, every, found = RecordRequests(is_embedded=False), [keys[hit["_id"]] for hit in hits], {}
    for start in range(0, len(every), READ_AT_ONCE):
        path, params, body = form.reading([f"{PLAIN}-osrerank-vectors"], every[start : start + READ_AT_ONCE])
        found |= form.found(client.transport.perform_request("POST", path, params=params, body=body))
    assert len(found) == len(hits)


def inside(client, question, depth):
    hits = first_pass(client, FIELD, question, depth, docvalue_fields=["vectors"])
    found = [base64.b64decode(hit["fields"]["vectors"][0] + "==") for hit in hits]
    assert all(found)


def test_state_places(client, keys):
    ways = {
        "BM25 alone": lambda question, depth: first_pass(client, PLAIN, question, depth),
        "BM25, and the side index": lambda question, depth: beside(client, keys, question, depth),
        "BM25 with a field of vectors": lambda question, depth: inside(client, question, depth),
    }
    asked = [question for question, _ in zip(questions(), range(SEARCHES), strict=False)]
    print(f"\n{'ms a request':<44} {'median':>9} {'p95':>8} {'p99':>8}")
    for depth in (100, 1000):
        times = {name: [] for name in ways}
        for question in asked:
            for name, way in ways.items():  # in turns
                began = time.perf_counter()
                way(question, depth)
                times[name].append((time.perf_counter() - began) * 1000)
        for name, taken in times.items():
            show(f"{name}, depth {depth:,}", taken)
    for name in (f"{PLAIN}-osrerank-vectors", PLAIN, FIELD):
        client.indices.forcemerge(index=name, params={"max_num_segments": "1"})
        stored = client.indices.stats(index=name)["_all"]["primaries"]["store"]["size_in_bytes"]
        print(f"{name}: {stored / len(keys):,.0f} bytes a document")
