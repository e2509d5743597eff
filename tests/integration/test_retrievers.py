"""Elasticsearch's retrievers as first passes: each is reranked within the hits that it ranks, or left alone."""

from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import ApiError, Elasticsearch, helpers

import osrerank
from osrerank.testing import FunctionScorer

INDEX = "retriever-notes"
MATCH = {"match": {"text": "blood"}}
STANDARD = {"standard": {"query": MATCH}}
KNN = {"knn": {"field": "vector", "query_vector": [1, 0], "k": 12, "num_candidates": 30}}
RESCORE = {"window_size": 12, "query": {"rescore_query": MATCH}}
DIVERSIFY = {"type": "mmr", "field": "vector", "query_vector": [1, 0], "lambda": 0.5, "rank_window_size": 20}
WINDOWED: dict[str, Any] = {
    "knn": KNN,
    "rescorer": {"rescorer": {"retriever": STANDARD, "rescore": RESCORE}},
    "diversify": {"diversify": {**DIVERSIFY, "size": 12, "retriever": STANDARD}},
    "rrf": {"rrf": {"retrievers": [STANDARD, KNN], "rank_window_size": 12}},
    "linear": {"linear": {"retrievers": [{"retriever": STANDARD}, {"retriever": KNN}], "rank_window_size": 12}},
}
LEFT_ALONE: dict[str, Any] = {
    "pinned": {"pinned": {"ids": ["3"], "retriever": STANDARD}},
    "rule": {"rule": {"ruleset_ids": ["none"], "match_criteria": {}, "retriever": STANDARD}},
}


@pytest.fixture(scope="module")
def plain_client(elasticsearch_url: str) -> Iterator[Elasticsearch]:
    vector = {"type": "dense_vector", "dims": 2, "similarity": "cosine"}
    with Elasticsearch(elasticsearch_url) as client:
        client.options(ignore_status=404).indices.delete(index=INDEX)
        client.indices.create(index=INDEX, mappings={"properties": {"text": {"type": "text"}, "vector": vector}})
        texts = [{"text": f"blood {'x' * n}", "vector": [1, (n * 7 % 30) / 10]} for n in range(30)]
        helpers.bulk(client, [{"_index": INDEX, "_id": str(n), **text} for n, text in enumerate(texts)], refresh=True)
        yield client
        client.indices.delete(index=INDEX)


@pytest.fixture(scope="module")
def client(plain_client: Elasticsearch) -> Iterator[Any]:
    with osrerank.wrap(plain_client, scorer=FunctionScorer(lambda _query, text: len(text))) as wrapped:
        yield wrapped


def ids(response: Any) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


def first_hits(plain: Elasticsearch, retriever: dict[str, Any], **page: int) -> list[str]:
    """Return the hits of a retriever; skip the test if this server does not have it, or not under its licence."""
    try:
        return ids(plain.search(index=INDEX, retriever=retriever, **page))
    except ApiError as error:
        if "unknown retriever" in str(error) or error.status_code == 403:
            pytest.skip(f"this Elasticsearch has no retriever {next(iter(retriever))}: {error.message}")
        raise


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_retriever_with_a_window_is_reranked_within_it(client: Any, plain_client: Elasticsearch, kind: str) -> None:
    retriever = WINDOWED[kind]
    ranked = first_hits(plain_client, retriever, size=12)
    by_length = sorted(ranked, key=int, reverse=True)
    search = {"index": INDEX, "retriever": retriever, "rerank": {"query": "blood"}}
    pages = [client.search(**search, size=4, from_=start) for start in (0, 4, 8)]
    assert [doc_id for page in pages for doc_id in ids(page)] == by_length
    beyond = client.search(**search, size=4, from_=9)
    assert beyond["rerank"]["reason_code"] == "retriever"
    assert ids(beyond) == first_hits(plain_client, retriever, size=4, from_=9)


@pytest.mark.parametrize("kind", WINDOWED)
def test_without_a_size_all_hits_of_a_retriever_are_reranked(
    client: Any, plain_client: Elasticsearch, kind: str
) -> None:
    for page in ({}, {"from_": 2}):
        hits = first_hits(plain_client, WINDOWED[kind], **page)
        response = client.search(index=INDEX, retriever=WINDOWED[kind], **page, rerank={"query": "blood"})
        assert (response["rerank"]["applied"], len(ids(response))) == (True, len(hits))


def test_a_standard_retriever_is_deepened_as_a_query_is(client: Any) -> None:
    assert ids(client.search(index=INDEX, retriever=STANDARD, size=3, rerank=True)) == ["29", "28", "27"]


def test_a_retriever_that_searches_for_no_text_says_so_unless_one_is_named(client: Any) -> None:
    search = {"index": INDEX, "retriever": KNN, "size": 4}
    assert client.search(**search, rerank=True)["rerank"]["reason_code"] == "no_query"
    assert client.search(**search, rerank={"query": "blood"})["rerank"]["applied"] is True


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_pinned_hits_keep_their_places(client: Any, plain_client: Elasticsearch, kind: str) -> None:
    hits = first_hits(plain_client, LEFT_ALONE[kind], size=4)
    response = client.search(index=INDEX, retriever=LEFT_ALONE[kind], size=4, rerank=True)
    assert (ids(response), response["rerank"]["reason_code"]) == (hits, "retriever")
