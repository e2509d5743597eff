"""Misshapen searches and requests: the embedded engine refuses them and writes nothing."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opensearchpy import OpenSearch, RequestError, TransportError

from osrerank import connect

MAPPINGS = {"properties": {"text": {"type": "text"}, "tag": {"type": "keyword"}, "n": {"type": "long"}}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearch]:
    folder: Path = tmp_path_factory.mktemp("misshapen")
    client = connect(f"embedded:{folder}")
    client.indices.create(index="a", body={"mappings": MAPPINGS})
    for number in range(3):
        client.index(index="a", id=str(number), body={"text": "x y", "tag": "t", "n": number})
    client.indices.refresh(index="a")
    yield client
    client.close()


def status(client: OpenSearch, method: str, path: str, body: Any, **params: Any) -> int:
    """Return the status of an answer; anything but opensearch-py's own errors fails the test."""
    try:
        client.transport.perform_request(method, path, params=params, body=body)
    except TransportError as error:
        return int(error.status_code)
    return 200


def query(clause: str, body: Any) -> dict[str, Any]:
    return {"query": {clause: body}}


def highlight(**options: Any) -> dict[str, Any]:
    return {**query("match", {"text": "x"}), "highlight": {"fields": {"text": {}}, **options}}


def terms(**options: Any) -> dict[str, Any]:
    return {"aggs": {"tags": {"terms": {"field": "tag", **options}}}}


@pytest.mark.parametrize(
    "body",
    [
        {"aggs": ["x"]},
        terms(field=["x"]),
        terms(size="abc"),
        highlight(pre_tags=[]),
        highlight(number_of_fragments="x"),
        {"fields": [5]},
        {"sort": [{"_doc": None}]},
        {"sort": ["_doc"], "search_after": ["x"]},
        {"size": 1.5},
        {"min_score": "x"},
        query("multi_match", {"query": "x", "fields": [None]}),
        query("multi_match", {"query": "x", "tie_breaker": "x"}),
        query("match", {"text": {"query": "x", "lenient": "maybe"}}),
        query("match", {"text": {"query": ["x"]}}),
        query("term", {"tag": {"value": "x", "boost": float("nan")}}),
        query("range", {"n": {"gte": 10**30}}),
        query("range", {"n": {"gte": [1]}}),
        query("exists", {"field": ["n"]}),
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_a_misshapen_search_is_refused(client: OpenSearch, body: Any) -> None:
    assert status(client, "POST", "/a/_search", body) == 400
    lines = f"{{}}\n{json.dumps(body)}\n{{}}\n{{}}\n"
    responses = client.transport.perform_request("POST", "/a/_msearch", body=lines)["responses"]
    assert [response["status"] for response in responses] == [400, 200]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/new", {"mappings": {"properties": {"a": "text"}}}),
        ("PUT", "/new", {"mappings": {"properties": []}}),
        ("PUT", "/new", {"mappings": {"properties": {"a": {"type": "keyword", "ignore_above": "x"}}}}),
        ("PUT", "/new", {"settings": ["x"]}),
        ("PUT", "/new", {"settings": {"number_of_shards": "x"}}),
        ("PUT", "/new", {"settings": {"similarity": "BM25"}}),
        ("PUT", "/new", {"settings": {"similarity": {"default": {"type": "BM25", "k1": "x"}}}}),
        ("PUT", "/new", {"settings": {"analysis": {"filter": ["x"]}}}),
        ("POST", "/_mtermvectors", {"docs": [{}]}),
        ("POST", "/_aliases", {"actions": [1]}),
    ],
)
def test_a_misshapen_request_is_refused_and_writes_nothing(
    client: OpenSearch, method: str, path: str, body: Any
) -> None:
    assert status(client, method, path, body) == 400
    assert not client.indices.exists(index="new")


def test_whole_numbers_are_compared_without_rounding(client: OpenSearch) -> None:
    first = 9007199254740992
    for number in (first, first + 1):
        client.index(index="big", id=str(number), body={"n": number})
    client.indices.refresh(index="big")
    for bound in (first + 1, str(first + 1)):
        hits = client.search(index="big", body=query("range", {"n": {"gte": bound}}))["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == [str(first + 1)]


VALID: list[dict[str, Any]] = [
    {**query("match", {"text": {"query": "x y", "lenient": True}}), "timeout": "1s", "search_pipeline": "_none"},
    {**query("multi_match", {"query": "x", "fields": ["text^2", "tag"], "tie_breaker": 0.3}), **terms(size=3)},
    {**query("bool", {"must": [{"match": {"text": "x"}}], "filter": {"term": {"tag": "t"}}}), "min_score": 0.1},
    {**query("range", {"n": {"gte": 1, "lt": "5"}}), "sort": [{"_doc": "desc"}], "search_after": [9]},
    {**highlight(pre_tags=["<b>"], number_of_fragments=1), "_source": {"includes": ["t*"]}},
    {**query("terms", {"n": [1, 2]}), "fields": ["tag"], "track_total_hits": 5, "post_filter": {"match_all": {}}},
    {**query("bool", {"should": [{"ids": {"values": ["1"]}}, {"exists": {"field": "n"}}], "must_not": []}), "from": 1},
    {**query("match_phrase", {"text": "x y"}), "sort": ["_doc"]},
    {**query("match_phrase", {"text": {"query": "x y"}}), "fields": [{"field": "tag"}]},
    query("term", {"tag": {"value": "t"}}),
]
STRANGE = st.sampled_from(
    [None, True, -1, 1.5, 10**30, 1e300, float("inf"), "", "x", "5", "\ud800", "*", [], [None], ["x"], {}, {"x": 1},
     {"x": None}, [[1]], [{"query": "x"}]]
)  # fmt: skip


def places(body: Any) -> list[tuple[Any, Any]]:
    """Return each container of a body with each of its keys or positions."""
    if not isinstance(body, dict | list):
        return []
    keys = list(body) if isinstance(body, dict) else list(range(len(body)))
    return [(body, key) for key in keys] + [place for key in keys for place in places(body[key])]


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """Return a valid search with a few of its values replaced."""
    body = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        if slots := places(body):
            container, key = draw(st.sampled_from(slots))
            container[key] = copy.deepcopy(draw(STRANGE))
    return body


@given(st.sampled_from(VALID), st.from_regex(r"[a-z]{3,9}_unknown", fullmatch=True), st.data())
def test_an_unknown_name_anywhere_in_a_search_is_refused_by_name(
    client: OpenSearch, valid: dict[str, Any], name: str, data: st.DataObject
) -> None:
    body = copy.deepcopy(valid)
    objects = [body, *(container[key] for container, key in places(body) if isinstance(container[key], dict))]
    data.draw(st.sampled_from(objects), "object")[name] = 1
    with pytest.raises(RequestError) as refused:
        client.search(index="a", body=body)
    assert name in refused.value.info["error"]["reason"]


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(mutated())
def test_mutated_searches_are_answered_or_refused(client: OpenSearch, body: dict[str, Any]) -> None:
    assert status(client, "POST", "/a/_search", json.dumps(body)) in (200, 400)
