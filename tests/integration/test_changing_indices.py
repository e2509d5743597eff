"""Indices that change between two searches of a client, and index expressions that name missing ones."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from osrerank import Client, connect
from osrerank.aio import connect_async
from osrerank.testing import FunctionScorer

TEXT = {"type": "text"}
WORD = {"type": "keyword", "fields": {"text": TEXT}}
Searching = Callable[[], Client]


@pytest.fixture
def new_client(engine_url: str) -> Iterator[Searching]:
    """Return a function that makes a client, which knows nothing of the indices yet."""
    clients: list[Client] = []

    def new() -> Client:
        clients.append(connect(engine_url, scorer=FunctionScorer()))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


def made(client: OpenSearch, name: str, properties: dict[str, Any], *documents: dict[str, Any]) -> None:
    """Make an index anew, with these documents."""
    client.indices.delete(index=name, ignore=[404])
    client.indices.create(index=name, body={"mappings": {"properties": properties}})
    for number, document in enumerate(documents):
        client.index(index=name, id=f"{name}-{number}", body=document, refresh=True)


def found(client: Client, query: str, index: str, **options: Any) -> tuple[list[str], list[str]]:
    """Return the ids that a reranked search finds, and the fields that the model read."""
    response = client.search(query, index=index, rerank=True, **options)
    return [hit["_id"] for hit in response["hits"]["hits"]], response["rerank"]["fields"]


def test_an_index_made_anew_by_the_same_client_is_searched_in_its_new_fields(
    new_client: Searching, index_name: str
) -> None:
    client = new_client()
    made(client, index_name, {"name": WORD, "summary": TEXT}, {"name": "gimp", "summary": "a program"})
    found(client, "gimp", index_name)
    made(client, index_name, {"name": TEXT, "about": TEXT}, {"name": "gimp", "about": "a program"})
    assert found(client, "gimp", index_name) == found(new_client(), "gimp", index_name)


def test_after_any_change_by_its_client_a_search_equals_a_new_clients_search(
    new_client: Searching, index_name: str
) -> None:
    draw, client = random.Random(20261128), new_client()
    for _ in range(12):
        names = draw.sample(["title", "name", "summary", "body", "note"], draw.randint(1, 4))
        properties: dict[str, Any] = {name: draw.choice([TEXT, WORD]) for name in names}
        made(client, index_name, properties, dict.fromkeys(names, "low blood pressure"), {names[0]: "blood"})
        assert found(client, "blood pressure", index_name) == found(new_client(), "blood pressure", index_name)
        client.indices.put_mapping(index=index_name, body={"properties": {"more": TEXT}})
        client.index(index=index_name, id="more", body={"more": "blood pressure again"}, refresh=True)
        assert found(client, "again", index_name) == found(new_client(), "again", index_name)


def test_an_alias_that_another_client_moves_is_searched_in_the_fields_of_its_new_index(opensearch_url: str) -> None:
    with connect(opensearch_url, scorer=FunctionScorer()) as client, OpenSearch(opensearch_url) as open_search:
        made(open_search, "moved-1", {"title": TEXT, "text": TEXT}, {"title": "blood", "text": "low pressure"})
        made(
            open_search,
            "moved-2",
            {"title": TEXT, "body": TEXT},
            {"title": "blood", "body": "low pressure"},
            {"body": "low"},
        )
        open_search.indices.put_alias(index="moved-1", name="moved")
        assert found(client, "low blood", "moved") == (["moved-1-0"], ["title", "text"])
        moves = [{"remove": {"index": "moved-1", "alias": "moved"}}, {"add": {"index": "moved-2", "alias": "moved"}}]
        open_search.indices.update_aliases(body={"actions": moves})
        hits, read = found(client, "low blood", "moved", _source=["title"])
        assert (sorted(hits), read) == (["moved-2-0", "moved-2-1"], ["title", "body"])


def test_a_missing_index_that_is_ignored_changes_neither_the_query_nor_the_fields(
    new_client: Searching, index_name: str
) -> None:
    client = new_client()
    properties = dict.fromkeys(("headline", "story", "author"), TEXT)
    documents = {"headline": "Notes", "story": "Low blood pressure.", "author": "A. Smith"}, {"author": "Tom Low"}
    made(client, index_name, properties, *documents)
    names = f"{index_name},{index_name}-missing"
    expected = found(client, "low blood pressure", index_name)
    assert found(client, "low blood pressure", names, ignore_unavailable=True) == expected
    assert found(new_client(), "low blood pressure", names, params={"ignore_unavailable": "true"}) == expected


def test_a_multi_search_whose_header_ignores_missing_indices_reads_the_fields(opensearch_url: str) -> None:
    with connect(opensearch_url, scorer=FunctionScorer()) as client:
        made(client, "there", {"title": TEXT, "story": TEXT}, {"title": "blood", "story": "low pressure"})
        header = {"index": ["there", "there-not"], "ignore_unavailable": True}
        lines = [header, {"query": {"multi_match": {"query": "low", "fields": ["sto*"]}}}]
        (response,) = client.msearch(body=lines, rerank=True)["responses"]
    assert (response["rerank"]["applied"], response["rerank"]["fields"]) == (True, ["story"])


@pytest.mark.parametrize("rerank", [True, {"query_fields": ["chapters.text"]}, {"query_fields": ["chapters", "title"]}])
def test_a_field_that_one_index_nests_and_another_does_not_is_searched_in_both(
    opensearch_url: str, rerank: Any
) -> None:
    chapter = {"properties": {"text": TEXT}}
    with connect(opensearch_url, scorer=FunctionScorer()) as client:
        for name, mapping in (("mixed-a", {"type": "nested", **chapter}), ("mixed-b", chapter), ("mixed-c", chapter)):
            made(client, name, {"chapters": mapping}, {"chapters": [{"text": "low blood pressure"}]})
        response = client.search("low blood pressure", index="mixed-*", rerank=rerank)
    assert sorted(hit["_id"] for hit in response["hits"]["hits"]) == ["mixed-a-0", "mixed-b-0", "mixed-c-0"]
    assert response["_shards"]["failed"] == 0


def test_an_index_made_anew_by_an_asynchronous_client_is_searched_in_its_new_fields(opensearch_url: str) -> None:
    async def run() -> list[list[str]]:
        read = []
        async with connect_async(opensearch_url, scorer=FunctionScorer()) as client:
            for text in ("text", "body"):
                await client.indices.delete(index="anew", ignore=[404])
                await client.indices.create(index="anew", body={"mappings": {"properties": {text: TEXT}}})
                await client.index(index="anew", id="1", body={text: "low blood"}, refresh=True)
                response = await client.search("low", index="anew", rerank=True)
                read.append(response["rerank"]["fields"])
        return read

    assert asyncio.run(run()) == [["text"], ["body"]]
