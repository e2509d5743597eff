"""The query is encoded while OpenSearch searches for its candidates."""

import threading
from contextlib import closing

import pytest

from osrerank.testing import CannedTransport
from osrerank.types import NEVER
from osrerank.vectors.documents import MAX_PREFETCHED, DocumentVectors
from tests.letters import Letters
from tests.rankings import client_for


class Noting(Letters):
    """Notes the queries that it encodes."""

    def __init__(self):
        super().__init__()
        self.queries = []
        self.begun = threading.Event()

    def encode(self, texts, side, *, deadline=NEVER):
        if side == "query":
            self.queries += texts
            self.begun.set()
        return super().encode(texts, side, deadline=deadline)


class Waiting(CannedTransport):
    """Answers searches once ``begun`` is set."""

    def __init__(self, hosts=None, *, begun, **options):
        super().__init__(hosts, **options)
        self.begun, self.was_begun = begun, []

    def perform_request(self, method, url, params=None, body=None, **options):
        if url.endswith("/_search") and "aggs" not in (body or {}) and "query" in (body or {}):
            self.was_begun.append(self.begun.wait(30))
        return super().perform_request(method, url, params, body, **options)


@pytest.fixture
def source():
    with closing(DocumentVectors(Noting())) as with_threads:
        yield with_threads


def test_the_query_is_encoded_before_the_first_pass_has_answered(monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    encoder = Noting()
    texts = ["a short text", "a text that is longer"]
    client = client_for(texts, encoder, warm=True, transport_class=Waiting, begun=encoder.begun)
    encoder.queries.clear()
    encoder.begun.clear()
    response = client.search("which text", index="notes", rerank={"fields": ["text"], "query_fields": ["text"]})
    assert response["rerank"]["applied"] is True
    assert client.transport.was_begun == [True]
    assert encoder.queries == ["which text"]


def test_a_query_of_two_simultaneous_searches_is_encoded_once(source):
    source.prefetch_query("which text")
    source.prefetch_query("which text")
    assert source.encode_query("which text").result().rows.shape == (1, 26)
    assert source.encoder.queries == ["which text"]


def test_encoded_queries_that_no_search_uses_are_forgotten(source):
    texts = [f"query {number}" for number in range(MAX_PREFETCHED + 1)]
    for text in texts:
        source.prefetch_query(text)
    for text in texts:
        source.encode_query(text).result()
    assert sorted(source.encoder.queries) == sorted([*texts, "query 0"])


def test_a_closed_vector_source_encodes_no_expected_query(source):
    source.close()
    source.prefetch_query("which text")
    assert source.encoder.queries == []
