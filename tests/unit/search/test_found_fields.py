"""Searches of indices whose fields nobody named, on the embedded engine."""

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import TransportError

from osrerank import Client, connect
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.kept import KEPT_S
from osrerank.testing import CannedTransport, FunctionScorer
from tests.articles import ARTICLES, fill
from tests.rankings import response_of

SCORER = FunctionScorer(lambda _query, text: float(len(text)))
FOUND = ["headline", "body"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=SCORER) as made:
        fill(made, "articles", ARTICLES)
        made.found_fields = FoundFields(itertools.count().__next__)  # each look at the clock is a second later
        yield made


def read(client: Client, index: str = "articles", **options: Any) -> tuple[int, list[str]]:
    response = client.search("low blood pressure", index=index, rerank=options or True)
    assert response["rerank"]["applied"] is True, response["rerank"]
    return len(response["hits"]["hits"]), response["rerank"]["fields"]


def requests_of(client: Client) -> list[str]:
    """Watch the paths that a client asks for."""
    paths: list[str] = []
    perform: Callable[..., Any] = client.transport.perform_request

    def watched(method: str, url: str, *arguments: Any, **options: Any) -> Any:
        paths.append(f"{method} {url}")
        return perform(method, url, *arguments, **options)

    client.transport.perform_request = watched  # type: ignore[method-assign]
    return paths


def test_text_fields_are_found_searched_and_read(client: Client) -> None:
    paths = requests_of(client)
    assert read(client) == (2, FOUND)
    assert read(client) == (2, FOUND)
    search = "POST /articles/_search"
    assert paths == ["GET /articles/_mapping", search, search, search]


def test_title_and_text_are_read_where_the_mapping_has_either(client: Client) -> None:
    fill(client, "notes", [{"text": "blood pressure", "summary": "low blood pressure once more"}])
    paths = requests_of(client)
    assert read(client, "notes") == (1, ["title", "text"])
    assert paths == ["GET /notes/_mapping", "POST /notes/_search"]


def test_what_is_read_follows_what_is_searched(client: Client) -> None:
    assert read(client, query_fields=["headline^2", "body"])[1] == FOUND
    assert read(client, query_fields="body")[1] == ["body"]
    assert read(client, fields="body") == (2, ["body"])


def test_queries_of_ones_own_and_multi_searches_read_them(client: Client) -> None:
    query = {"match": {"body": "low blood pressure"}}
    answer = client.search(query, index="articles", rerank=True)
    assert (answer["rerank"]["applied"], answer["rerank"]["fields"]) == (True, FOUND)
    lines = [{"index": "articles"}, {"query": query}, {}, {"query": query}]
    for one in client.msearch(body=lines, index="articles", rerank=True)["responses"]:
        assert (one["rerank"]["applied"], one["rerank"]["fields"]) == (True, FOUND)


def test_several_indices_aliases_and_patterns(client: Client) -> None:
    fill(client, "papers", [{"abstract": "On the low pressure of the blood"}])
    client.indices.put_alias(index="articles", name="news")
    assert read(client, "articles,papers") == (3, ["headline", "abstract", "body"])
    assert read(client, "news") == (2, FOUND)
    assert read(client, "pap*") == (1, ["abstract"])
    assert read(client, ["articles", "papers"])[0] == 3  # type: ignore[arg-type]


def test_a_new_field_is_found_when_the_mapping_is_old(client: Client) -> None:
    now = 0.0
    client.found_fields = FoundFields(lambda: now)
    assert read(client)[1] == FOUND
    fill(client, "articles", [*ARTICLES, {"summary": "On low blood pressure, once more"}])
    assert read(client) == (2, FOUND)
    now = KEPT_S + 1
    assert read(client) == (3, ["headline", "summary", "body"])


def test_an_index_that_was_empty(client: Client) -> None:
    client.indices.create(index="later")
    assert client.search("low", index="later", rerank=True)["rerank"]["reason"] == "there are no hits"
    fill(client, "later", ARTICLES)
    assert read(client, "later") == (2, FOUND)


@pytest.mark.parametrize("options", [{"query_fields": ["summary^2", "text"]}, {"fields": ["summary", "text"]}])
def test_named_fields_that_are_not_there_are_named(
    client: Client, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        marks = client.search("low blood pressure", index="articles", rerank=options)["rerank"]
    missing = "the mapping has no summary, text; its text fields are headline, body, url"
    assert marks["applied"] is False
    assert marks["reason"].endswith(f"; {missing}")
    assert missing in caplog.text


def test_searches_that_find_nothing_read_the_mapping_now_and_then(client: Client) -> None:
    client.found_fields = FoundFields(lambda: 0.0)
    paths = requests_of(client)
    for options in ({}, {"query_fields": ["summary"]}):
        for _ in range(5):
            client.search("nothing of this", index="articles", rerank=options or True)  # type: ignore[arg-type]
    assert paths.count("GET /articles/_mapping") == 2
    assert paths.count("POST /articles/_search") == 10 + 1  # and a sample


def test_no_hits_in_fields_that_are_there_is_all_that_is_said(client: Client) -> None:
    marks = client.search("nothing of this", index="articles", rerank={"query_fields": ["url"]})["rerank"]
    assert marks["reason"] == "there are no hits"


class Closed(CannedTransport):
    def perform_request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        if url.endswith("_mapping"):
            raise TransportError(403, "no permissions for [indices:admin/mappings/get]")
        return super().perform_request(method, url, *arguments, **options)


def test_where_mappings_may_not_be_read_title_and_text_are_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = connect("http://localhost:9", scorer=SCORER, transport_class=Closed, answer=response_of(["a", "bbb"]))
    assert read(client, "i") == (2, ["title", "text"])
    assert "the mapping of i cannot be read, title and text are searched" in caplog.text
    transport: Any = client.transport
    assert transport.requests[0]["body"]["query"]["multi_match"]["fields"] == ["title", "text"]


def test_responses_from_elsewhere(client: Client) -> None:
    found = client.search(index="articles", body={"query": {"match": {"body": "low"}}})
    marks = client.rerank_response(json.loads(json.dumps(found)), "low blood pressure")["rerank"]
    assert (marks["applied"], marks["fields"]) == (True, FOUND)
