"""Searches of indices whose fields nobody named, on the embedded engine."""

import itertools
import logging
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opensearchpy import TransportError

from osrerank import Client, Rerank, connect
from osrerank.errors import ConfigError
from osrerank.retrieval.field_finder import FieldFinder
from osrerank.retrieval.query_text import find_searched_fields
from osrerank.search.plan import FIELD_SAMPLE_SIZE, Plan, SearchCall
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import CannedTransport
from osrerank.types.reasons import SearchWarning, WarningCode
from tests.articles import ARTICLES, fill, watched
from tests.rankings import BY_LENGTH, client_for

FOUND = ["headline", "body", "url"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=BY_LENGTH) as opened_client:
        fill(opened_client, "articles", ARTICLES)
        opened_client.searcher.fields = FieldFinder(
            itertools.count().__next__
        )  # each look at the clock is a second later
        yield opened_client


def read(client: Client, index: str = "articles", **options: Any) -> tuple[int, list[str]]:
    response = client.search("low blood pressure", index=index, rerank=options or True)
    assert response["rerank"]["applied"] is True, response["rerank"]
    return len(response["hits"]["hits"]), response["rerank"]["fields"]


def test_text_fields_of_the_mapping_are_searched_and_read(client: Client) -> None:
    with watched(client) as requests:
        assert read(client) == (2, FOUND)
        assert read(client) == (2, FOUND)
    assert [path for path, _ in requests] == ["/articles/_mapping", *["/articles/_search"] * 2]


def test_the_fields_read_are_the_fields_searched(client: Client) -> None:
    assert read(client, query_fields=["headline^2", "body"])[1] == ["headline", "body"]
    assert read(client, query_fields="body")[1] == ["body"]
    assert read(client, fields="body") == (2, ["body"])


LOW = {"query": "low blood pressure"}
OWN = [
    ({"match": {"body": LOW}}, ["body"]),
    ({"multi_match": {**LOW, "fields": ["headline^2", "body"]}}, ["headline", "body"]),
    ({"multi_match": {**LOW, "fields": ["body", "body.keyword", "url"]}}, ["body", "url"]),
    ({"multi_match": {**LOW, "fields": ["bod*"]}}, ["body"]),
    ({"multi_match": {**LOW, "fields": ["*"], "lenient": True}}, FOUND),
    ({"multi_match": LOW}, FOUND),
    ({"bool": {"must": {"match": {"body": LOW}}, "should": {"match_phrase": {"headline": "low blood pressure"}}}},
     ["body", "headline"]),
    ({"bool": {"must": {"match": {"body": LOW}}, "filter": {"match": {"url": "/b"}}}}, ["body"]),
    ({"match": {"body.keyword": "low blood pressure"}}, FOUND),
]  # fmt: skip


@pytest.mark.parametrize(("query", "fields"), OWN)
def test_a_query_in_clauses_is_reranked_by_the_fields_that_it_searches(
    client: Client, query: dict[str, Any], fields: list[str]
) -> None:
    fill(client, "articles", [*ARTICLES, {"headline": "x y", "body": "low blood pressure"}])
    answer = client.search(query, index="articles", rerank=True)
    assert (answer["rerank"]["applied"], answer["rerank"]["fields"]) == (True, fields)
    lines = [{"index": "articles"}, {"query": query}, {}, {"query": query}]
    for response in client.msearch(body=lines, index="articles", rerank=True)["responses"]:
        assert (response["rerank"]["applied"], response["rerank"]["fields"]) == (True, fields)


@pytest.mark.parametrize(
    ("clause", "fields"),
    [
        ({"query_string": {"query": "title:low AND bod*:(blood) pressure"}}, ("title", "bod*")),
        ({"query_string": {"query": "see http://a.b at 10:30", "default_field": "body"}}, ("body",)),
        ({"combined_fields": {"query": "low", "fields": ["a", "b"]}}, ("a", "b")),
        ({"nested": {"path": "c", "query": {"match": {"c.d": "low"}}}}, ("c.d",)),
        ({"neural": {"vector": {"query_text": "low", "k": 3}}}, ()),
        ({"term": {"tag": "x"}}, ()),
        ({"dis_max": {"queries": [{"match": {"a": "low"}}, {"simple_query_string": {"query": "low"}}]}}, ()),
    ],
)
def test_the_fields_of_query_clauses_are_read(clause: dict[str, Any], fields: tuple[str, ...]) -> None:
    assert find_searched_fields(clause) == fields


def test_fields_are_found_for_several_indices_aliases_and_patterns(client: Client) -> None:
    fill(client, "papers", [{"abstract": "On the low pressure of the blood", "headline": "x", "pages": "low 3"}])
    client.indices.put_alias(index="articles", name="news")
    assert read(client, "articles,papers") == (3, [*FOUND, "abstract", "pages"])
    assert read(client, "news") == (2, FOUND)
    assert read(client, "pap*") == (1, ["headline", "abstract", "pages"])
    assert read(client, ["articles", "papers"])[0] == 3  # type: ignore[arg-type]


def test_each_of_several_indices_is_searched_and_read_in_its_own_fields(client: Client) -> None:
    fill(client, "stories", [{"story": "Low blood pressure at sea"}])
    marks = client.search("low blood pressure", index="articles,stories", rerank=True)["rerank"]
    assert marks["fields_by_index"] == {"articles": FOUND, "stories": ["story"]}


def test_a_new_field_is_searched_as_soon_as_hits_show_it(client: Client) -> None:
    now = 0.0
    client.searcher.fields = FieldFinder(lambda: now)
    assert read(client)[1] == FOUND
    fill(client, "articles", [{**ARTICLES[0], "summary": "On low blood pressure, once more"}, *ARTICLES[1:]])
    now = 1.0
    assert read(client) == (2, ["headline", "body", "summary", "url"])


VALUES = ["gimp", "Image editor", "libgimp2.0-dev", "https://a.example/b", "4006381333931", "", "x y z " * 40]


def test_searched_fields_do_not_depend_on_documents(client: Client) -> None:
    draw = random.Random(83)
    properties = {"name": {"type": "keyword", "fields": {"text": {"type": "text"}}}, "summary": {"type": "text"}}
    for _ in range(10):
        client.indices.delete(index="tools", ignore=[404])
        client.indices.create(index="tools", body={"mappings": {"properties": properties}})
        documents = [{"name": draw.choice(VALUES), "summary": draw.choice(VALUES)} for _ in range(draw.randint(1, 30))]
        fill(client, "tools", [*documents, {"name": "low blood pressure", "summary": "low"}])
        client.searcher.fields = FieldFinder()
        assert read(client, "tools")[1] == ["name", "summary"]
        assert client.fields_of("tools").query_fields == ("name.text", "summary")


def test_fields_that_are_left_out_are_named_once_in_the_log_and_in_each_response(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, "wide", [{"title": "low blood pressure"} | {f"f{number}": "low" for number in range(6)}])
    for _ in range(2):
        marks = client.search("low blood pressure", index="wide", rerank=True)["rerank"]
        assert marks["fields"] == ["title", "f0", "f1", "f2", "f3"]
        assert marks["fields_left_out"] == ["f4", "f5"]
    lines = [record.getMessage() for record in caplog.records if "[fields-left-out]" in record.getMessage()]
    warning = "read title, f0, f1, f2, f3, but not f4, f5; to search other fields, name them as query_fields"
    assert lines == [f"[fields-left-out] searches of wide {warning}"]
    report = client.search("low blood pressure", index="wide", rerank={"query_fields": ["f5"]})["rerank"]
    assert "fields_left_out" not in report


def test_a_pattern_in_the_query_is_read_in_all_its_fields(client: Client) -> None:
    fill(client, "words", [{f"f{number}": "low blood pressure"} for number in range(7)])
    names = [f"f{number}" for number in range(7)]
    by_pattern, by_all = ({"multi_match": {**LOW, "fields": [pattern]}} for pattern in ("f*", "*"))
    report = client.search(by_pattern, index="words", rerank=True)["rerank"]
    assert (report["applied"], report["fields"], report.get("fields_left_out")) == (True, names, None)
    report = client.search(by_all, index="words", rerank=True)["rerank"]
    assert (report["applied"], report["fields"], report["fields_left_out"]) == ("partial", names[:5], names[5:])


def test_the_mapping_of_a_recreated_index_is_read_again(client: Client) -> None:
    assert read(client) == (2, FOUND)
    for second in ("content", "text"):
        client.indices.delete(index="articles")
        fill(client, "articles", [{"headline": "Low", second: "Blood pressure is low at noon"}])
        assert read(client) == (1, ["headline", second])


def test_the_mapping_is_read_once_a_minute(client: Client) -> None:
    now = 0.0
    client.searcher.fields = FieldFinder(lambda: now)
    with watched(client) as requests:
        for now in (0.0, 30.0, 59.0, 61.0, 90.0):  # noqa: B007 - the clock's
            read(client)
    assert Counter(path for path, _ in requests) == {"/articles/_mapping": 2, "/articles/_search": 5}


def test_an_index_that_was_empty_is_searched_in_its_new_fields(client: Client) -> None:
    client.indices.create(index="later")
    assert client.search("low", index="later", rerank=True)["rerank"]["reason"] == "there are no hits"
    fill(client, "later", ARTICLES)
    assert read(client, "later") == (2, FOUND)


NAMED = [
    ({"query_fields": ["bdy^2"]}, ["the mapping has no field 'bdy'; the nearest name is 'body'"]),
    ({"query_fields": ["headline", "texts"]}, ["the mapping has no field 'texts'; the nearest name is 'note'"]),
    ({"fields": ["body", "urls"]}, ["the mapping has no field 'urls'; the nearest name is 'url'"]),
    ({"fields": ["body", "note"]}, ["the field 'note' has no text in any of the hits; the nearest name is 'body'"]),
    ({"fields": ["b*"], "query_fields": ["headline", "bo*^3"]}, []),
]


@pytest.mark.parametrize(("options", "warnings"), NAMED)
def test_named_fields_that_give_no_text_are_named(
    client: Client, options: dict[str, Any], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    client.indices.put_mapping(index="articles", body={"properties": {"note": {"type": "text"}}})
    client.searcher.fields = FieldFinder(lambda: 0.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            marks = client.search("low blood pressure", index="articles", rerank=options)["rerank"]
            assert marks["warnings"] == warnings
    lines = [record.getMessage() for record in caplog.records if "[fields-missing]" in record.getMessage()]
    assert lines == [f"[fields-missing] search of articles: {sentence}" for sentence in warnings]
    if warnings:
        with pytest.raises(ConfigError, match=warnings[0]):
            client.search("low blood pressure", index="articles", rerank={**options, "on_failure": "raise"})


def test_searches_without_hits_read_the_mapping_again(client: Client) -> None:
    client.searcher.fields = FieldFinder(lambda: 0.0)
    with watched(client) as requests:
        for fields in (None, ["summary"], ["url"]):
            for _ in range(5):
                marks = client.search("nothing of this", index="articles", rerank={"query_fields": fields})["rerank"]
                assert fields == ["summary"] or marks["reason"] == "there are no hits"
    assert Counter(path for path, _ in requests) == {"/articles/_mapping": 1, "/articles/_search": 15}


class Closed(CannedTransport):
    def perform_request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        if url.endswith("_mapping"):
            raise TransportError(403, "no permissions for [indices:admin/mappings/get]")
        return super().perform_request(method, url, *arguments, **options)


def test_without_the_right_to_read_mappings_default_fields_are_searched_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = client_for(["a", "bbb"], transport_class=Closed)
    assert read(client, "i") == (2, ["text"])
    warning = "the mapping of i cannot be read: the search uses the default fields"
    assert f"[mapping-unread] {warning}" in caplog.text
    assert "fields" not in client.transport.requests[0]["body"]["query"]["multi_match"]
    assert client.search("low", index="i", rerank={"fields": "text"})["rerank"]["warnings"] == [warning]


def test_without_a_mapping_the_model_reads_the_fields_of_the_query() -> None:
    class Remote(CannedTransport):
        def perform_request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
            response = super().perform_request(method, url, *arguments, **options)
            return {} if url.endswith("_mapping") else response

    client = client_for(["a", "bbb"], transport_class=Remote)
    for _ in range(2):
        marks = client.search({"match": {"text": "low"}}, index="remote:art*", _source=["day"], rerank=True)["rerank"]
        assert (marks["applied"], marks["fields"]) == (True, ["text"])


def test_an_index_without_text_fields_is_named_in_the_response(client: Client) -> None:
    client.indices.create(index="codes", body={"mappings": {"properties": {"code": {"type": "keyword"}}}})
    fill(client, "codes", [{"code": "low"}])
    marks = client.search("low", index="codes", rerank=True)["rerank"]
    no_text = "the mapping has no text field, only code: the search uses the default fields"
    assert marks["warnings"] == [no_text]
    unreadable = Mock(**{"find.side_effect": LookupError})
    client.searcher.fields = FieldFinder(build_fields=unreadable)
    unread, last = client.search("low", index="codes", rerank=True)["rerank"]["warnings"]
    assert unread.startswith("cannot look up which fields the vectors of codes were built from")
    assert last == no_text


@pytest.mark.parametrize("code", WarningCode)
def test_a_warning_about_fields_is_logged_with_its_code(code: WarningCode, caplog: pytest.LogCaptureFixture) -> None:
    warned = pickle.loads(pickle.dumps(SearchWarning("what differs", code)))
    FieldFinder().warn("articles", [warned])
    assert caplog.messages == [f"[{code}] search of articles: what differs"]


WARNED = {
    WarningCode.COLLAPSED: {"body": {"query": {"match": {"text": "low"}}, "collapse": {"field": "group"}}},
    WarningCode.FIELDS_MISSING: {"query": "low", "rerank": {"fields": ["summary"]}},
    WarningCode.MAPPING_UNREAD: {"query": "low", "transport_class": Closed},
    WarningCode.PIPELINE_CHANGED: {"query": "low", "rerank": {"pipeline": "mono"}, "scorer": None},
}


@pytest.mark.parametrize("code", WARNED)
def test_every_warning_of_a_search_is_logged_with_the_code_of_its_kind(
    code: WarningCode, caplog: pytest.LogCaptureFixture
) -> None:
    asked: dict[str, Any] = {"rerank": True, **WARNED[code]}
    client_options = {name: asked.pop(name) for name in ("scorer", "transport_class") if name in asked}
    with client_for(["low", "lower"], **client_options) as client:
        (warning,) = client.search(index="i", **asked)["rerank"]["warnings"]
    (line,) = [line for line in caplog.messages if warning in line]
    assert line.startswith(f"[{code}] ")


def test_rm3_feedback_searches_the_found_fields(client: Client) -> None:
    assert read(client, rm3=True) == (1, FOUND)


def test_foreign_responses_are_read_without_a_mapping(client: Client) -> None:
    response = client.search(index="articles", body={"query": {"match": {"body": "low"}}})
    marks = client.rerank_response(response, "low blood pressure")["rerank"]
    assert (marks["applied"], marks["fields"]) == (True, ["headline", "body"])


class Read(dict[str, Any]):
    """A hit that counts how often it is looked at."""

    count = 0

    def get(self, name: str, default: Any = None) -> Any:
        Read.count += 1
        return super().get(name, default)


@given(st.integers(1, 400))
def test_fields_are_sampled_from_many_hits(count: int) -> None:
    Read.count = 0
    hits = [
        Read(_id=str(n), _source={"title": "Salt", "text": f"Salt raises the pressure, {n}."}) for n in range(count)
    ]
    plan = Plan(SearchCall(options=Rerank()), RerankService(Settings.load(), BY_LENGTH)).with_fields_from(hits)
    assert plan.model_fields == ("title", "text")
    assert Read.count <= 2 * FIELD_SAMPLE_SIZE
