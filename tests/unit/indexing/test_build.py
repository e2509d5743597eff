"""Builds of an index's vectors: where they store them, and what an interrupted one leaves to the next."""

import itertools

import pytest

from osrerank import connect
from osrerank.indexing.build import build_vectors
from osrerank.indexing.documents import BATCH, vectors_of
from osrerank.testing import CannedTransport
from tests.articles import fill
from tests.letters import Letters

NOTES = [{"text": f"note {number}"} for number in range(3 * BATCH)]
SIDE = "canned-osrerank-vectors"


class Cluster(CannedTransport):
    """Answers a build of the index ``canned``, whose newest change is 9, and keeps how far builds came."""

    meta = None

    def perform_request(self, method, url, params=None, body=None, **options):
        if method == "HEAD":
            return url == f"/{SIDE}"
        if url == f"/{SIDE}/_mapping":
            self.meta = body["_meta"] if body else self.meta
            return {SIDE: {"mappings": {"_meta": self.meta} if self.meta else {}}}
        every = [{"_index": "canned", "_id": str(at), "_source": note} for at, note in enumerate(NOTES)]
        self.answer = {
            "count": len(NOTES),
            "aggregations": {"newest": {"value": 9}},
            "canned": {"mappings": {"changed": {"mapping": {"changed": {"type": "long"}}}}},
            "hits": {"hits": every if params and "scroll" in params else []},
            "_scroll_id": "",
            "items": [],
        }
        return super().perform_request(method, url, params, body, **options)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))


@pytest.fixture
def interrupted():
    """An encoder that is interrupted once, in its third batch."""
    batches = itertools.count(1)

    def encode(_seconds):
        if next(batches) == 3:
            raise KeyboardInterrupt

    return Letters(sleep=encode)


def test_an_interrupted_build_continues_with_the_batch_that_it_was_in(tmp_path, interrupted):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=interrupted) as client:
        fill(client, "notes", NOTES)
        with pytest.raises(KeyboardInterrupt):
            build_vectors(client, "notes")
        assert build_vectors(client, "notes").encoded == BATCH
        assert build_vectors(client, "notes").encoded == 0


def test_after_an_interrupted_build_since_a_field_the_next_reads_the_same_changes(interrupted):
    with connect("http://localhost:9", scorer=interrupted, transport_class=Cluster) as client:
        with pytest.raises(KeyboardInterrupt):
            build_vectors(client, "canned", since="changed")
        for _ in range(2):
            build_vectors(client, "canned", since="changed")
        first, again, later = [one["body"]["query"] for one in client.transport.requests if "scroll" in one["params"]]
    assert first == again == {"match_all": {}}
    assert {"range": {"changed": {"gte": 9}}} in later["bool"]["should"]


def test_a_build_stores_in_the_side_index_of_a_cluster_and_else_in_the_file(tmp_path):
    cluster = connect("http://localhost:9", scorer=Letters(), transport_class=Cluster)
    embedded = connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters())
    fill(embedded, "canned", NOTES)
    for client, in_file in ((cluster, 0), (embedded, len(NOTES))):
        build_vectors(client, "canned")
        assert vectors_of(client).store.size().records == in_file
    bodies = [request["body"] for request in cluster.transport.requests if request["url"] == "/_bulk"]
    assert sum(body.count(SIDE) for body in bodies) == len(NOTES)
    assert not embedded.indices.exists(index=SIDE)
