"""Searches that say ``ext.ubi``, recorded on both engines with the page as it was returned."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from osrerank import Client, connect
from osrerank.aio import connect_async
from osrerank.decision.use.ubi import UbiSource, read_ubi
from osrerank.search.ubi import INDEX
from osrerank.types.engine import Engine
from tests.articles import fill
from tests.rankings import BY_LENGTH

pytestmark = pytest.mark.integration

NOTES = [{"sku": f"S{place}", "text": "blood pressure " + "low " * place} for place in range(20)]
UBI = {"query_id": "q1", "user_query": "Blood pressure?", "client_id": "browser 7", "query_attributes": {"lang": "en"}}


@pytest.fixture
def client(engine_url: str, index_name: str, engine: OpenSearch) -> Iterator[Client]:
    engine.indices.delete(index=f"{INDEX},ubi_events", ignore_unavailable=True)
    with connect(engine_url, scorer=BY_LENGTH) as made:
        if made.engine is Engine.ELASTICSEARCH:
            pytest.skip("Elasticsearch refuses ext, so nothing is recorded for UBI")
        fill(made, index_name, NOTES)
        yield made
    engine.indices.delete(index=f"{INDEX},ubi_events", ignore_unavailable=True)


def body_with(ubi: Any) -> dict[str, Any]:
    return {"query": {"match": {"text": "blood pressure"}}, "size": 4, "ext": {"ubi": ubi}}


def records(client: Client) -> list[dict[str, Any]]:
    client.indices.refresh(index=INDEX)
    response = client.search(index=INDEX, body={"query": {"match_all": {}}, "size": 100})
    return sorted((hit["_source"] for hit in response["hits"]["hits"]), key=lambda one: one["timestamp"])


def test_the_returned_page_is_recorded_and_not_the_first_pass(client: Client, index_name: str) -> None:
    asked: Any = {"blend": "replace"}
    answer = client.search(index=index_name, body={**body_with(UBI), "from": 2}, rerank=asked)
    shown = [hit["_id"] for hit in answer["hits"]["hits"]]
    assert shown == ["17", "16", "15", "14"]
    assert answer["ext"] == {"ubi": {"query_id": "q1"}}
    assert answer["rerank"]["ubi"] == {"recorded": True, "reason": None, "query_id": "q1"}
    (record,) = records(client)
    attributes = {"osrerank_applied": "true", "osrerank_first_rank": "3"}
    assert record["query_attributes"] == {"lang": "en", **attributes}
    assert record["query_response_hit_ids"] == shown
    assert (record["user_query"], record["client_id"]) == ("Blood pressure?", "browser 7")
    assert json.loads(record["query"])["query"] == {"match": {"text": "blood pressure"}}
    assert "ext" not in json.loads(record["query"])


def test_an_interleaved_page_is_recorded_with_its_teams(client: Client, index_name: str) -> None:
    asked: Any = {"interleave": {"with": {"pipeline": "none"}, "key": "user@example.org", "name": "bm25"}}
    answer = client.search(index=index_name, body=body_with(UBI), rerank=asked)
    (record,) = records(client)
    attributes = record["query_attributes"]
    assert attributes["osrerank_teams"] == answer["rerank"]["interleave"]["teams"]
    assert attributes["osrerank_experiment"] == "bm25"
    assert "example.org" not in json.dumps(record)
    clicked = answer["hits"]["hits"][1]
    event = {"action_name": "click", "query_id": "q1", "timestamp": "2026-01-01T00:00:00Z", "session_id": "s"}
    object_ = {"object_id": clicked["_id"], "object_id_field": "_id"}
    event["event_attributes"] = {"object": object_, "position": {"ordinal": 0}}  # counts from 0, which does not matter
    client.index(index="ubi_events", body=event, refresh=True)
    (page,) = read_ubi(client, UbiSource()).pages
    assert read_ubi(client, UbiSource(since="2020-01-01T00:00:00Z")).pages == (page,)
    assert read_ubi(client, UbiSource(application="another")).pages == ()
    assert (page.query, page.clicked, page.teams) == ("Blood pressure?", {clicked["_id"]}, attributes["osrerank_teams"])
    assert page.session == attributes["osrerank_session"] != "user@example.org"


def test_multiple_and_asynchronous_searches_are_recorded(client: Client, engine_url: str, index_name: str) -> None:
    lines: list[Any] = [{"index": index_name}, body_with(UBI), {"index": index_name}, body_with({"query_id": "q2"})]
    answers = client.msearch(body=lines, rerank=True)["responses"]
    assert [answer["ext"]["ubi"]["query_id"] for answer in answers] == ["q1", "q2"]
    assert {record["query_id"]: record["user_query"] for record in records(client)} == {
        "q1": "Blood pressure?",
        "q2": "blood pressure",
    }

    async def search() -> Any:
        async with connect_async(engine_url, scorer=BY_LENGTH) as asynchronous:
            drawn: Any = {"interleave": {"with": {"pipeline": "none"}, "key": "s1", "name": "bm25"}}
            return [
                await asynchronous.search(index=index_name, body=body_with({}), rerank=drawn_value)
                for drawn_value in (True, drawn)
            ]

    if engine_url.startswith("embedded:"):
        client.close()
    plain, interleaved = asyncio.run(search())
    with connect(engine_url) as other:
        attributes = {record["query_id"]: record["query_attributes"] for record in records(other)}
    assert "osrerank_teams" not in attributes[plain["ext"]["ubi"]["query_id"]]
    teams = interleaved["rerank"]["interleave"]["teams"]
    assert attributes[interleaved["ext"]["ubi"]["query_id"]]["osrerank_teams"] == teams
    assert set(teams) == {"A", "B"}


def test_a_search_whose_hits_lack_the_field_that_stands_for_them_is_not_recorded(
    client: Client, index_name: str
) -> None:
    body = {**body_with({**UBI, "object_id_field": "sku"}), "_source": ["text"]}
    hidden = client.search(index=index_name, body=body, rerank=True)
    assert hidden["rerank"]["ubi"] == {
        "recorded": False,
        "reason": "a hit has no field 'sku', which ext.ubi names as object_id_field",
        "query_id": "q1",
    }
