"""Builds of an index's vectors: where they store them, what they read, and what an interrupted one leaves."""

import itertools

import pytest
from opensearchpy import TransportError

from osrerank import connect
from osrerank.errors import ConfigError
from osrerank.indexing.build import BuildSummary, build_vectors, follow_vectors
from osrerank.indexing.documents import BATCH_SIZE, document_vectors
from osrerank.testing import CannedTransport
from tests.articles import fill
from tests.letters import Letters

NOTES = [{"text": f"note {number}"} for number in range(8 * BATCH_SIZE)]
SIDE = "osrerank-vectors-canned"


class Serverless(CannedTransport):
    """Answers a build of the index ``canned``, whose newest change is 9, keeps the progress, and has no ``_stats``."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.kept = {}

    def perform_request(self, method, url, params=None, body=None, **options):
        if url == "/canned/_stats/docs":
            raise TransportError(410, "api_not_available_exception", {})
        if method == "HEAD":
            return url == f"/{SIDE}"
        if "position-" in url:
            self.kept[url.rpartition("/")[2]] = body["record"]
            return {"_seq_no": 1, "_primary_term": 1}
        every = [{"_index": "canned", "_id": str(index), "_source": note} for index, note in enumerate(NOTES)]
        if body and url == f"/{SIDE}/_search" and "position-" in str(body):
            kept_names = [name for name in body["query"]["ids"]["values"] if name in self.kept]
            return {"hits": {"hits": [{"_id": name, "fields": {"record": [self.kept[name]]}} for name in kept_names]}}
        self.answer = {
            "aggregations": {"highest": {"value": 9}},
            "canned": {"mappings": {"changed": {"mapping": {"changed": {"type": "long"}}}}},
            "hits": {"total": {"value": len(NOTES)}, "hits": every if params and "scroll" in params else []},
            "_scroll_id": "",
            "items": [],
        }
        return super().perform_request(method, url, params, body, **options)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))


@pytest.fixture
def interrupted_encoder():
    """An encoder that is interrupted once, in its third batch."""
    batches = itertools.count(1)

    def encode(_seconds):
        if next(batches) == 3:
            raise KeyboardInterrupt

    return Letters(sleep=encode)


def test_an_interrupted_build_continues_with_the_interrupted_batch(tmp_path, interrupted_encoder):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=interrupted_encoder) as client:
        fill(client, "notes", NOTES)
        with pytest.raises(KeyboardInterrupt):
            build_vectors(client, "notes")
        built = build_vectors(client, "notes")
        assert (built.documents, built.encoded) == (len(NOTES) - 3 * BATCH_SIZE, len(NOTES) - 3 * BATCH_SIZE)
        assert build_vectors(client, "notes") == BuildSummary()


def test_a_build_reads_only_documents_that_changed_since_the_last_build(tmp_path):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, "notes", NOTES)
        build_vectors(client, "notes")
        client.index(index="notes", id="1", body={"text": "changed"}, refresh=True)
        client.delete(index="notes", id="2", refresh=True)
        built = build_vectors(client, "notes")
        assert (built.documents, built.encoded) == (1, 1)
        assert client.coverage("notes").built == len(NOTES) - 1


def test_an_index_that_was_made_anew_is_read_whole(tmp_path):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        for _ in range(2):
            fill(client, "notes", NOTES)
            assert build_vectors(client, "notes").documents == len(NOTES)
            client.indices.delete(index="notes")


def test_an_index_that_an_alias_newly_stands_for_is_read_whole(tmp_path):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        for name in ("old", "new"):
            fill(client, name, NOTES)
            client.indices.put_alias(index=name, name="notes")
            assert build_vectors(client, "notes").documents == len(NOTES)


def test_after_vectors_were_dropped_every_document_is_read(tmp_path):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, "notes", NOTES)
        build_vectors(client, "notes")
        document_vectors(client).store.drop()
        assert client.coverage("notes").lacks == len(NOTES)
        assert build_vectors(client, "notes").encoded == len(NOTES)


def test_a_build_of_other_fields_reads_every_document(tmp_path):
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, "notes", [{**note, "title": "a title"} for note in NOTES])
        build_vectors(client, "notes")
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters(), rerank={"fields": "text"}) as client:
        assert client.coverage("notes").lacks == len(NOTES)
        assert build_vectors(client, "notes").encoded == len(NOTES)


def test_an_interrupted_build_by_a_date_field_reads_the_same_changes_again(interrupted_encoder):
    with connect("http://localhost:9", scorer=interrupted_encoder, transport_class=Serverless) as client:
        with pytest.raises(KeyboardInterrupt):
            build_vectors(client, "canned", date_field="changed")
        for _ in range(2):
            build_vectors(client, "canned", date_field="changed")
    first, again, later = [
        request["body"]["query"] for request in client.transport.requests if "scroll" in request["params"]
    ]
    assert first == again == {"match_all": {}}
    assert {"range": {"changed": {"gte": 9}}} in later["bool"]["should"]


def test_following_a_service_without_sequence_numbers_names_the_date_field():
    with (
        connect("http://localhost:9", scorer=Letters(), transport_class=Serverless) as client,
        pytest.raises(ConfigError, match="name a date field that each change sets"),
    ):
        follow_vectors(client, "canned")


def test_a_build_stores_in_the_side_index_of_a_cluster_and_else_in_the_file(tmp_path):
    cluster = connect("http://localhost:9", scorer=Letters(), transport_class=Serverless)
    embedded = connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters())
    fill(embedded, "canned", NOTES)
    for client in (cluster, embedded):
        build_vectors(client, "canned")
        assert document_vectors(client).store.size().records == len(
            NOTES
        )  # the cluster's builder keeps what it encoded
    bodies = [request["body"] for request in cluster.transport.requests if request["url"] == "/_bulk"]
    assert sum(body.count(SIDE) for body in bodies) == len(NOTES)
    assert not embedded.indices.exists(index=SIDE)
