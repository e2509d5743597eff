"""Candidates by vectors beside the first pass's, on both engines."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from opensearchpy import NotFoundError
from prometheus_client import REGISTRY

from osrerank import Client, connect
from osrerank.aio import connect_async
from osrerank.cli import cli
from osrerank.errors import VectorsError
from osrerank.retrieval.vector_field import VectorField

pytestmark = pytest.mark.integration

MODEL = "osrerank/mono-small"
DOCUMENTS = [
    ("Heart failure", "low blood pressure is caused by a weak heart", 2000),
    ("Dehydration", "hypotension comes from a loss of fluid", 2001),
    ("Tyres", "the pressure of a tyre is low in winter", 2002),
    ("Cooking", "a pressure cooker saves time", 2003),
    ("Shock", "severe infection makes arteries wide, and the circulation collapses", 2004),
    ("Gardens", "roses need sun and water", 2005),
]
QUERY = "what causes low blood pressure"
MAPPING = {
    "mappings": {
        "properties": {"title": {"type": "text"}, "text": {"type": "text"}, "year": {"type": "integer"}},
    }
}


@pytest.fixture(scope="module")
def client(engine_url: str) -> Iterator[Client]:
    with connect(engine_url, model=MODEL) as made:
        yield made


@pytest.fixture(scope="module")
def field(client: Client) -> VectorField:
    vectors = client.reranker.text_vectors()
    return VectorField("osrerank_vector", vectors.dimension, "byte", vectors.model, ("title", "text"))


def filled(client: Client, field: VectorField, title: str, text: str, year: int) -> dict[str, Any]:
    """Return a document with its vector."""
    read = f"{title} {text}"
    (vector,) = field.values(client.reranker.text_vectors().documents([read]))
    own = {"title": title, "text": text, "year": year}
    return {**own, field.name: vector, str(field.digest_field): field.digest_of(read)}


def fill(client: Client, field: VectorField, index: str, body: dict[str, Any]) -> None:
    client.indices.create(index=index, body=body)
    for number, document in enumerate(DOCUMENTS):
        client.index(index=index, id=str(number), body=filled(client, field, *document))
    client.indices.refresh(index=index)


@pytest.fixture
def index(client: Client, field: VectorField, index_name: str) -> str:
    fill(client, field, index_name, field.with_field(MAPPING))
    return index_name


def ids(response: Any) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


def failed() -> float:
    return REGISTRY.get_sample_value("osrerank_vector_searches_failed_total") or 0.0


def test_what_shares_no_word_with_the_query_is_found_by_its_vector(client: Client, index: str):
    alone = client.search(QUERY, index=index, rerank=True, size=20)
    both = client.search(QUERY, index=index, rerank={"candidates": {"vectors": 3}, "explain": True}, size=20)
    assert "1" not in ids(alone)
    assert "1" in ids(both)
    assert set(ids(alone)) <= set(ids(both))
    assert both["hits"]["total"] == alone["hits"]["total"]
    found = {hit["_id"]: hit["_rerank"] for hit in both["hits"]["hits"]}
    assert set(found["0"]) >= {"first_pass", "vectors", "mono"}
    assert "first_pass" not in found["1"]
    assert found["1"]["vectors"]["first_pass_at_most"] == 0.0
    assert found["1"]["explanation"][0].startswith("vectors: rank ")
    marks = both["rerank"]["candidates"]
    assert marks == {"vectors": 3, "vectors_only": len(both["hits"]["hits"]) - len(ids(alone)), "reason": None}
    scores = [hit["_score"] for hit in both["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert not any("fields" in hit or "osrerank_vector" in hit["_source"] for hit in both["hits"]["hits"])


def test_pages_join(client: Client, index: str):
    options = {"candidates": {"vectors": 6}, "depth": 2}
    whole = ids(client.search(QUERY, index=index, rerank=options, size=20))
    assert len(whole) == len(set(whole)) > 4
    parts = [ids(client.search(QUERY, index=index, rerank=options, size=2, from_=at)) for at in (0, 2, 4)]
    assert [one for part in parts for one in part] == whole[:6]


def test_conditions_hold_for_both_and_the_rest_is_the_first_pass_own(client: Client, index: str):
    body = {
        "query": {"bool": {"must": {"match": {"text": QUERY}}, "filter": {"range": {"year": {"gte": 2001}}}}},
        "post_filter": {"range": {"year": {"lte": 2004}}},
        "aggs": {"years": {"terms": {"field": "year"}}},
        "highlight": {"fields": {"text": {}}},
        "_source": ["year"],
    }
    plain = client.search(body=body, index=index)
    both = client.search(body=body, index=index, rerank={"candidates": {"vectors": 10}})
    assert set(ids(both)) == {"1", "2", "3", "4"}
    assert both["aggregations"] == plain["aggregations"]
    assert both["hits"]["total"] == plain["hits"]["total"]
    marked = {hit["_id"]: hit.get("highlight") for hit in both["hits"]["hits"]}
    assert marked["2"] == next(hit["highlight"] for hit in plain["hits"]["hits"] if hit["_id"] == "2")
    assert all(set(hit["_source"]) == {"year"} and "fields" not in hit for hit in both["hits"]["hits"])


@pytest.mark.parametrize("in_source", [False, True])
def test_a_changed_text_has_a_new_vector_or_none(client: Client, field: VectorField, index_name: str, in_source: bool):
    body = field.with_field(MAPPING)
    if in_source:
        del body["mappings"]["_source"]
    fill(client, field, index_name, body)
    changes = [{"update": {"_index": index_name, "_id": "1"}}, {"doc": {"text": "a poem about spring"}}]
    assert client.bulk(body=changes, refresh=True)["errors"] is False
    response = client.search(QUERY, index=index_name, rerank={"candidates": {"vectors": 6}}, size=20)
    assert "1" not in ids(response)
    assert response["rerank"]["candidates"].get("stale", 0) == int(in_source)
    anew = [{"index": {"_index": index_name, "_id": "1"}}, filled(client, field, *DOCUMENTS[1])]
    assert client.bulk(body=anew, refresh=True)["errors"] is False
    assert "1" in ids(client.search(QUERY, index=index_name, rerank={"candidates": {"vectors": 6}}, size=20))


def test_without_vectors_the_first_pass_is_alone_and_marked(client: Client, field: VectorField, index: str):
    alone = ids(client.search(QUERY, index=index, rerank=True))
    for candidates, why in (
        ({"field": "year"}, "the field year is a"),
        ({"field": "other"}, "the field other is not there"),
    ):
        before = failed()
        response = client.search(QUERY, index=index, rerank={"candidates": candidates})
        assert ids(response) == alone
        assert response["rerank"]["applied"] is True
        assert why in response["rerank"]["candidates"]["reason"]
        assert failed() == before + 1
        with pytest.raises(VectorsError, match=why):
            client.search(QUERY, index=index, rerank={"candidates": candidates, "on_failure": "raise"})


def test_vectors_of_another_model_are_not_compared(client: Client, index: str, engine_url: str):
    with connect(engine_url, model="osrerank/mono") as other:
        response = other.search(QUERY, index=index, rerank={"candidates": True})
    assert "of another model" in response["rerank"]["candidates"]["reason"]


def test_an_index_that_is_not_there_is_the_same_error(client: Client):
    for options in ({}, {"candidates": True}):
        with pytest.raises(NotFoundError):
            client.search(QUERY, index="no-such-index", rerank={"query_fields": ["text"], **options})


def test_the_asynchronous_client_finds_the_same(client: Client, index: str, engine_url: str):
    async def found() -> Any:
        other = connect_async(engine_url, model=MODEL)
        try:
            return await other.search(QUERY, index=index, rerank={"candidates": {"vectors": 3}}, size=20)
        finally:
            await other.close()

    expected = client.search(QUERY, index=index, rerank={"candidates": {"vectors": 3}}, size=20)
    assert [(hit["_id"], hit["_score"]) for hit in asyncio.run(found())["hits"]["hits"]] == [
        (hit["_id"], hit["_score"]) for hit in expected["hits"]["hits"]
    ]


def test_runs_of_each_source_and_of_both(client: Client, index: str, engine_url: str, tmp_path: Any):
    (tmp_path / "topics.tsv").write_text(f"1\t{QUERY}\n")
    (tmp_path / "qrels.txt").write_text("1 0 0 1\n1 0 1 1\n1 0 4 1\n")

    def osrerank(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["--url", engine_url, "--model", MODEL, *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def run(name: str, *options: str) -> None:
        queries = str(tmp_path / "topics.tsv")
        osrerank("run", "--queries", queries, "--index", index, "--output", str(tmp_path / name), *options)

    run("bm25.run", "--no-rerank")
    run("vectors.run", "--no-rerank", "--source", "vectors", "--hits", "2")
    run("union.run", "--vectors", "2")
    qrels, bm25, vectors = (str(tmp_path / name) for name in ("qrels.txt", "bm25.run", "vectors.run"))
    assert "union" in osrerank("evaluate", qrels, bm25, vectors, "--union")
    union = str(tmp_path / "union.run.jsonl")
    assert "with vectors" in osrerank("tradeoff", qrels, union, "--k0", "1,2")
    recall = osrerank("--json", "tradeoff", qrels, union, "--recall", "--k0", "2")
    assert '"curve": "union"' in recall
