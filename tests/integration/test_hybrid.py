"""OpenSearch's own hybrid query, with its normalisation, as the first pass of a reranked search."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import RequestError, TransportError

from osrerank import Client, connect
from osrerank.testing import FunctionScorer, overlap
from tests.articles import fill
from tests.engine_facts import needs_plugins

pytestmark = pytest.mark.integration

PIPELINE = "osrerank-test-hybrid"
QUERY = "what causes low blood pressure"
TEXTS = [
    "dehydration causes low blood pressure",
    "low pressure areas bring rain",
    "cats sleep all day",
    "the heart pumps blood",
    "salt raises the pressure of blood",
]


@pytest.fixture(scope="module")
def client(opensearch_url: str) -> Iterator[Client]:
    """A client of an index with texts and vectors, beside a pipeline that normalises."""
    with connect(opensearch_url, scorer=FunctionScorer(overlap)) as made:
        needs_plugins(made, "opensearch-knn", "opensearch-neural-search")
        normalise = {"normalization": {"technique": "min_max"}, "combination": {"technique": "arithmetic_mean"}}
        body = {"phase_results_processors": [{"normalization-processor": normalise}]}
        made.transport.perform_request("PUT", f"/_search/pipeline/{PIPELINE}", body=body)
        method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
        vector = {"type": "knn_vector", "dimension": 2, "data_type": "byte", "method": method}
        mappings = {"properties": {"text": {"type": "text"}, "v": vector}}
        made.indices.delete(index="hybrid", ignore_unavailable=True)
        settings = {"knn": True, "number_of_shards": 1, "number_of_replicas": 0}
        made.indices.create(index="hybrid", body={"settings": settings, "mappings": mappings})
        fill(made, "hybrid", [{"text": text, "v": [number + 1, 10]} for number, text in enumerate(TEXTS)])
        yield made
        made.indices.delete(index="hybrid")
        made.transport.perform_request("DELETE", f"/_search/pipeline/{PIPELINE}")


def hybrid() -> dict[str, Any]:
    nearest = {"knn": {"v": {"vector": [3, 10], "k": 3}}}
    return {"query": {"hybrid": {"queries": [{"match": {"text": QUERY}}, nearest]}}}


@pytest.mark.parametrize(
    "where", ["argument", pytest.param("body", marks=pytest.mark.needs("a search pipeline named in a body"))]
)
def test_a_hybrid_search_is_reranked_with_its_scores_as_they_come(client: Client, where: str) -> None:
    body = hybrid() if where == "argument" else {**hybrid(), "search_pipeline": PIPELINE}
    options: dict[str, Any] = {"search_pipeline": PIPELINE} if where == "argument" else {}
    first = client.search(body=body, index="hybrid", **options)["hits"]["hits"]
    answer = client.search(body=body, index="hybrid", rerank={"blend": "replace"}, **options)
    assert answer["rerank"]["applied"] is True
    hits = answer["hits"]["hits"]
    assert {hit["_id"] for hit in hits} == {hit["_id"] for hit in first} == set("01234")
    first_scores = {hit["_id"]: hit["_rerank"]["first_pass"]["score"] for hit in hits}
    assert first_scores == {hit["_id"]: hit["_score"] for hit in first}
    assert hits[0]["_id"] == "0"
    assert "2" in first_scores  # found by its vector alone
    overlaps = [overlap(QUERY, hit["_source"]["text"]) for hit in hits]
    assert overlaps == sorted(overlaps, reverse=True)


def test_the_blend_uses_the_hybrid_score_in_place_of_bm25(client: Client) -> None:
    options = {"blend": "linear", "blend_weight": 2.0}
    hits = client.search(body=hybrid(), index="hybrid", search_pipeline=PIPELINE, rerank=options)["hits"]["hits"]
    marks = [hit["_rerank"] for hit in hits]
    best = max(mark["first_pass"]["score"] for mark in marks)
    blends = [mark["mono"]["score"] + 2.0 * mark["first_pass"]["score"] / best for mark in marks]
    assert [mark["blend"]["score"] for mark in marks] == pytest.approx(blends)
    assert blends == sorted(blends, reverse=True)


def test_pages_of_a_hybrid_search_neither_overlap_nor_skip(client: Client) -> None:
    search = {"index": "hybrid", "search_pipeline": PIPELINE, "rerank": True}
    body = hybrid()
    body["query"]["hybrid"]["pagination_depth"] = 20
    hits = client.search(body=body, **search)["hits"]["hits"]
    pages = [client.search(body={**body, "from": start, "size": 2}, **search)["hits"]["hits"] for start in (0, 2, 4)]
    assert [hit["_id"] for page in pages for hit in page] == [hit["_id"] for hit in hits]


def test_min_score_leaves_the_hits_of_a_hybrid_search_that_the_plain_search_shows(client: Client) -> None:
    client.indices.delete(index="hybrid-scores", ignore_unavailable=True)
    texts = ["salt and air " * (1 + number % 4) + "pressure " * (number % 5) for number in range(60)]
    titles = ["salt" if number % 3 == 0 else "air" for number in range(60)]
    fill(client, "hybrid-scores", [{"title": title, "text": text} for title, text in zip(titles, texts, strict=True)])
    queries = [{"match": {"title": "salt"}}, {"match": {"text": "pressure"}}]
    for hybrid_query in ({"queries": queries}, {"queries": queries, "pagination_depth": 30}):
        for min_score, size in itertools.product((0.1, 0.5, 0.7), (3, 10)):
            body = {"query": {"hybrid": hybrid_query}, "size": size, "min_score": min_score}
            search = {"index": "hybrid-scores", "search_pipeline": PIPELINE, "body": body}
            plain, answer = client.search(**search), client.search(**search, rerank={"query": "salt pressure"})
            assert (body, answer["hits"]["total"]) == (body, plain["hits"]["total"])
            assert (body, len(answer["hits"]["hits"])) == (body, len(plain["hits"]["hits"]))
    client.indices.delete(index="hybrid-scores")


def test_a_default_pipeline_normalises_a_hybrid_search(client: Client) -> None:
    client.indices.put_settings(index="hybrid", body={"index.search.default_pipeline": PIPELINE})
    answer = client.search(body=hybrid(), index="hybrid", rerank=True)
    client.indices.put_settings(index="hybrid", body={"index.search.default_pipeline": None})
    assert (answer["rerank"]["applied"], len(answer["hits"]["hits"])) == (True, 5)


def test_a_hybrid_search_without_normalisation_is_not_reranked_with_a_reason(client: Client) -> None:
    answer = client.search(body=hybrid(), index="hybrid", rerank=True)
    assert answer["rerank"]["applied"] is False
    assert "a pipeline that normalises" in answer["rerank"]["reason"]


def test_a_page_beyond_the_pagination_depth_is_refused_as_without_reranking(client: Client) -> None:
    body = {**hybrid(), "from": 20, "size": 2}
    body["query"]["hybrid"]["pagination_depth"] = 2
    for rerank in (False, True):
        with pytest.raises(RequestError):
            client.search(body=body, index="hybrid", search_pipeline=PIPELINE, rerank=rerank)


@pytest.mark.parametrize("seed", range(12))
def test_hybrid_searches_refused_by_opensearch_are_refused_with_reranking(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    body = {**hybrid(), "from": draw.choice([0, 1, 4, 30]), "size": draw.choice([1, 3])}
    if depth := draw.choice([None, 0, 2, 20, 20_000]):
        body["query"]["hybrid"]["pagination_depth"] = depth
    if draw.random() < 0.3:
        body["sort"] = draw.choice([["_score"], ["_score", {"_id": "asc"}]])
    if draw.random() < 0.2:
        body["query"] = {"bool": {"must": [{"match": {"text": QUERY}}], "filter": [body["query"]]}}
    answers = []
    for rerank in (False, {"query": QUERY}):
        try:
            response = client.search(body=body, index="hybrid", search_pipeline=PIPELINE, rerank=rerank)
            answers.append(response["hits"]["total"])
        except TransportError as error:
            answers.append(error.status_code)
    assert answers[0] == answers[1], body
