"""What only Elasticsearch has, on the trial licence: ``semantic_text``, synthetic ``_source``; and other clusters."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticsearch import BadRequestError, Elasticsearch

import osrerank
from osrerank.testing import FunctionScorer
from tests.rankings import response_of
from tests.rerank_server import Received, Reply, answering
from tests.servers import elasticsearch

pytestmark = pytest.mark.integration

EMBEDDING = {
    "request": '{"input": ${input}}',
    "response": {"json_parser": {"text_embeddings": "$.data[*].embedding", "embedding_type": "float"}},
    "secret_parameters": {"api_key": "none"},
    "similarity": "cosine",
}
DOCUMENTS = [
    {"title": "blood", "words": "low pressure"},
    {"title": "notes on blood", "words": ["a heart", "that is slow"]},
]
Filled = Callable[..., Any]


def embedded(received: Received) -> Reply:
    vectors = [{"embedding": [1.0, 2.0, float(len(text))]} for text in received.body["input"]]
    return Reply({"data": vectors}, headers=(("Content-Type", "application/json"),))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elasticsearch]:
    settings = ("xpack.license.self_generated.type=trial",)
    with elasticsearch(tmp_path_factory.mktemp("trial"), *settings) as url, answering(embedded) as service:
        client = Elasticsearch(url, request_timeout=60)
        client.cluster.health(wait_for_status="yellow")
        inference = {"service": "custom", "service_settings": {**EMBEDDING, "url": service.url}}
        client.perform_request(
            "PUT",
            "/_inference/text_embedding/tiny",
            body=inference,
            headers={"content-type": "application/json", "accept": "application/json"},
        )
        yield client
        client.close()


@pytest.fixture
def texts_read() -> list[str]:
    """The texts that the model reads, in the order in which it is given them."""
    return []


@pytest.fixture
def index_of(client: Elasticsearch, texts_read: list[str]) -> Iterator[Filled]:
    """Return a function that makes an index of the documents; it returns a client that reranks."""

    def make(fields: dict[str, Any], settings: dict[str, Any] | None = None) -> Any:
        client.indices.create(index="notes", mappings={"properties": fields}, settings=settings)
        for number, document in enumerate(DOCUMENTS):
            client.index(index="notes", id=str(number), document=document, refresh=True)
        return osrerank.wrap(
            client, scorer=FunctionScorer(lambda _query, text: float(texts_read.append(text) or len(text)))
        )  # type: ignore[func-returns-value]

    yield make
    client.indices.delete(index="notes")


SEMANTIC = {"title": {"type": "text"}, "words": {"type": "semantic_text", "inference_id": "tiny"}}
LEGACY = {"index.mapping.semantic_text.use_legacy_format": True}
QUERIES: dict[str, Any] = {
    "match": {"match": {"words": "low"}},
    "semantic": {"semantic": {"field": "words", "query": "low"}},
}


@pytest.mark.parametrize("settings", [None, LEGACY], ids=["plain", "legacy"])
@pytest.mark.parametrize("kind", QUERIES)
def test_the_text_of_semantic_text_is_read_where_the_query_searches_it(
    index_of: Filled, texts_read: list[str], settings: Any, kind: str
) -> None:
    reranking = index_of(SEMANTIC, settings)
    for source in (None, False):
        del texts_read[:]
        response = reranking.search(index="notes", query=QUERIES[kind], source=source, rerank=True)
        assert (response["rerank"]["applied"], response["rerank"]["fields"]) == (True, ["words"])
        assert sorted(texts_read) == ["a heart that is slow", "low pressure"]
        assert all("fields" not in hit for hit in response["hits"]["hits"])


def test_semantic_text_is_read_beside_other_texts_and_searched_if_it_is_named(
    client: Elasticsearch, index_of: Filled, texts_read: list[str]
) -> None:
    reranking = index_of(SEMANTIC)
    response = reranking.search(index="notes", query="notes", rerank=True)
    assert [hit["_id"] for hit in response["hits"]["hits"]] == ["1"]
    assert response["rerank"]["fields"] == ["title", "words"]
    assert texts_read == ["notes on blood a heart that is slow"]
    with pytest.raises(BadRequestError):
        client.search(index="notes", query={"multi_match": {"query": "notes", "fields": ["title", "words"]}})
    both = reranking.search(index="notes", query="notes", rerank={"query_fields": ["title", "words^2"]})
    assert sorted(hit["_id"] for hit in both["hits"]["hits"]) == ["0", "1"]  # all have a vector
    assert both["rerank"]["applied"] is True


def test_a_text_that_is_copied_to_semantic_text_is_read_once(index_of: Filled, texts_read: list[str]) -> None:
    reranking = index_of({**SEMANTIC, "title": {"type": "text", "copy_to": "words"}})
    query = {"match": {"title": "notes"}}
    response = reranking.search(index="notes", query=query, rerank={"fields": ["words"]})
    assert response["rerank"]["fields"] == ["words"]
    (text,) = texts_read
    assert [text.count(part) for part in ("notes on blood", "a heart", "that is slow")] == [1, 1, 1]


def test_synthetic_source_is_read(index_of: Filled, texts_read: list[str]) -> None:
    text = {"type": "text"}
    reranking = index_of({"title": text, "words": text}, {"index.mapping.source.mode": "synthetic"})
    for source in (None, False, ["title"]):
        del texts_read[:]
        response = reranking.search(index="notes", query="blood", source=source, rerank=True)
        assert response["rerank"]["applied"] is True
        assert sorted(texts_read) == ["blood low pressure", "notes on blood a heart that is slow"]


def test_an_index_of_another_cluster_is_searched_by_its_name_though_its_mapping_cannot_be_read() -> None:
    """The server of these tests has no other cluster: the requests are shown as they are sent."""
    product = (("Content-Type", "application/json"), ("X-Elastic-Product", "Elasticsearch"))
    refusal = {"error": {"type": "illegal_argument_exception", "reason": "Cross-cluster calls are not supported"}}

    def answer(received: Received) -> Reply:
        if received.method == "GET":
            return Reply({**refusal, "status": 400}, 400, product)
        return Reply(response_of(["a", "bbb", "cc"]), headers=product)

    with answering(answer) as server, Elasticsearch(server.url) as plain:
        reranking = osrerank.wrap(plain, scorer=FunctionScorer(lambda _query, text: float(len(text))))
        response = reranking.search(index="far:notes", query={"match": {"text": "low"}}, rerank=True)
        paths = [(received.method, received.path) for received in server.received]
    assert paths == [("GET", "/far%3Anotes/_mapping"), ("POST", "/far%3Anotes/_search")]
    assert "search_pipeline" not in server.received[-1].body
    assert [hit["_id"] for hit in response["hits"]["hits"]] == ["d1", "d2", "d0"]
    assert response["rerank"]["warnings"] == [
        "the mapping of far:notes cannot be read: the search uses the default fields"
    ]
