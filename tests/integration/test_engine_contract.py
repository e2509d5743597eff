"""The real OpenSearch and the embedded engine, given the same requests in turn: same answers, same errors."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch, TransportError, helpers

from tests.engine_library import MAPPINGS, books_in
from tests.integration.conftest import Engines

pytestmark = pytest.mark.integration

Request = Callable[[OpenSearch, str], Any]
IGNORED = {"took", "_shards", "_seq_no", "_primary_term", "_score", "max_score", "terminated_early", "sort"}
"""Scores are compared in test_engine_scores.py, counts of shards below; a place in the order of insertion is each
engine's own."""


def compared(answer: Any) -> Any:
    """Return an answer without what may differ."""
    if isinstance(answer, dict):
        return {name: compared(value) for name, value in answer.items() if name not in IGNORED}
    if isinstance(answer, list):
        return [compared(value) for value in answer]
    return round(answer, 4) if isinstance(answer, float) else answer


def answer(engine: OpenSearch, index: str, request: Request) -> Any:
    """Return what is compared of an answer; of an error its status and what it says of its cause."""
    try:
        return compared(request(engine, index))
    except TransportError as error:
        if not isinstance(error.info, dict) or not isinstance(error.info.get("error"), dict):
            return error.status_code, compared(error.info)
        cause = error.info["error"]["root_cause"][0]
        return error.status_code, error.info["status"], cause["type"]


@pytest.fixture(scope="module")
def books(engines: Engines) -> Iterator[str]:
    """An index of six documents that no test changes."""
    with books_in(engines, "test-books") as name:
        yield name


@pytest.fixture
def library(engines: Engines) -> Iterator[str]:
    """An index of six documents that the test may change."""
    with books_in(engines, "test-library", "test-library-*", "test-other") as name:
        yield name


SEARCHES: list[Any] = [
    *({"_source": shown} for shown in (False, True, "title", ["year", "pri*"], ["nothing"])),
    {"_source": {"excludes": ["t*", "body", "seen", "open", "price"]}},
    pytest.param(
        {"_source": {"includes": ["t*", "year"], "excludes": ["year"]}},
        marks=pytest.mark.needs("a field both in includes and in excludes"),
    ),
    {"fields": ["title", "ye*", "seen", "open", "price"], "_source": False},
    *({"from": start, "size": 2} for start in (0, 4, 8)),
    {"size": 0},
    *({"track_total_hits": count} for count in (True, False, 0, 1, 2, 6)),
    {"query": {"match": {"body": "lazy dogs"}}, "sort": ["_doc"]},
    {"sort": [{"_doc": "desc"}], "size": 2},
    pytest.param(
        {"query": {"match": {"body": "lazy dogs"}}, "min_score": 0.9},
        marks=pytest.mark.needs("BM25 without the factor k1 + 1"),
    ),
    {"size": 0, "aggs": {"a": {"terms": {"field": "genre"}}}, "query": {"range": {"year": {"gte": 1990}}}},
    {"size": 0, "aggs": {"a": {"terms": {"field": "open"}}, "b": {"terms": {"field": "genre", "size": 1}}}},
    {"size": 0, "aggs": {name: {"terms": {"field": name}} for name in ("year", "price", "seen", "nowhere")}},
    {"post_filter": {"term": {"genre": "food"}}, "aggs": {"a": {"terms": {"field": "genre"}}}},
    {"query": {"exists": {"field": "t*"}}},
    {"query": {"bool": {}}, "post_filter": {"term": {"genre": "food"}}, "min_score": 1},
    {
        "query": {"match": {"body": "dog"}},
        "highlight": {"pre_tags": ["["], "post_tags": ["]"], "fields": {"*": {"number_of_fragments": 0}}},
    },
    pytest.param({"search_pipeline": "_none"}, marks=pytest.mark.needs("a search pipeline named in a body")),
    {"timeout": "5s", "ext": {"rerank": {}}},
]


@pytest.mark.parametrize("body", SEARCHES, ids=str)
def test_both_engines_answer_the_same_searches_alike(engines: Engines, books: str, body: dict[str, Any]) -> None:
    theirs, ours = (engine.search(index=books, body=body) for engine in engines)
    assert ["sort" in hit for hit in ours["hits"]["hits"]] == ["sort" in hit for hit in theirs["hits"]["hits"]]
    assert compared(ours) == compared(theirs)
    assert ours["_shards"] == theirs["_shards"]


REFUSED: list[Any] = [
    {"query": {"nonsense": {}}},
    {"query": {"match": {"body": "a"}, "term": {"genre": "b"}}},
    {"query": {"match": {"body": {"query": "a", "nonsense": 1}}}},
    {"query": {"match": {"year": "many"}}},
    {"query": {"term": {"year": 10**10}}},
    {"query": {"multi_match": {"query": "dog", "fields": ["y*"]}}},
    {"nonsense": 1},
    pytest.param({"size": -1}, marks=pytest.mark.needs("an error for a size of -1")),
    {"from": 9_999, "size": 2},
    {"aggs": {"a": {"terms": {"field": "title"}}}},
]


@pytest.mark.parametrize("body", REFUSED, ids=str)
def test_both_engines_refuse_the_same_searches(engines: Engines, books: str, body: dict[str, Any]) -> None:
    theirs, ours = (answer(engine, books, lambda one, index: one.search(index=index, body=body)) for engine in engines)
    assert theirs[0] == 400
    assert ours == theirs


NAMED = {
    "name": "Ada Lovelace",
    "born": "1815-12-10",
    "age": 36,
    "rate": 1.5,
    "ok": True,
    "at": {"city": "London"},
    "tags": ["a", "b"],
    "nothing": None,
    "a": {"b": 1, "c": [{"d": 1, "e": 2}, {"d": 3}]},
    "f": [],
}
OF_NAMED: list[dict[str, Any]] = [
    {"query": {"match": {"name": "ada"}}},
    {"query": {"term": {"name.keyword": "Ada Lovelace"}}},
    {"query": {"match": {"at.city": "london"}}},
    {"query": {"term": {"tags.keyword": "b"}}},
    {"query": {"range": {"born": {"lt": "1816"}}}},
    {"query": {"exists": {"field": "at"}}},
    {"fields": ["*"]},
    *({"_source": shown} for shown in ("a.b", "a", "a.c.d", {"excludes": "a.c"}, "*.e")),
]
TEXT = {"properties": {"a": {"type": "text"}}}
STEPS: dict[str, list[Request]] = {
    "documents": [
        lambda one, i: one.get(index=i, id="1"),
        lambda one, i: one.get(index=i, id="9"),
        lambda one, i: (one.exists(index=i, id="1"), one.exists(index=i, id="9")),
        lambda one, i: one.mget(index=i, body={"ids": ["2", "9"]}),
        lambda one, i: one.mget(body={"docs": [{"_index": i, "_id": "3"}, {"_index": i, "_id": "9"}]}),
        lambda one, i: one.mget(body={"docs": [{"_index": i}]}),
        lambda one, i: one.get(index=f"{i}*", id="1"),
    ],
    "what is written is there at once, and found after a refresh": [
        lambda one, i: one.indices.put_settings(index=i, body={"index": {"refresh_interval": "-1"}}),
        lambda one, i: one.index(index=i, id="z", body={"title": "New zebra"}),
        lambda one, i: one.get(index=i, id="z"),
        lambda one, i: one.search(index=i, body={"query": {"match": {"title": "zebra"}}}),
        lambda one, i: one.indices.refresh(index=i),
        lambda one, i: one.search(index=i, body={"query": {"match": {"title": "zebras"}}}),
        lambda one, i: one.index(index=i, id="z", body={"title": "Old zebra"}, refresh=True),
        lambda one, i: one.search(index=i, body={"query": {"match": {"title": "new"}}}),
        lambda one, i: one.delete(index=i, id="z", refresh=True),
        lambda one, i: one.delete(index=i, id="z", ignore=404)["result"],
        lambda one, i: one.count(index=i),
    ],
    "bulks": [
        lambda one, i: len(one.index(index=i, body={"title": "no id"})["_id"]) >= 20,
        lambda one, i: one.bulk(
            index=i,
            body=[{"create": {"_id": "1"}}, {"title": "x"}, {"delete": {"_id": "1"}}],
            filter_path="items.*.status",
        ),
        lambda one, _: one.bulk(body='{"nonsense": {"_index": "a"}}\n{}\n'),
        lambda one, i: helpers.bulk(one, ({"_index": i, "_id": f"b{n}", "title": "b"} for n in range(700))),
        lambda one, i: one.bulk(
            index=i,
            body=[{"index": {"_id": "1"}}, {"year": "x"}],
            filter_path="errors,items.*.status,items.*.error.type",
        ),
    ],
    "indices": [
        lambda one, i: one.indices.create(index=i),
        lambda one, i: one.indices.create(index=i, ignore=400)["status"],
        lambda one, i: (one.indices.exists(index=i), one.indices.exists(index="nowhere")),
        *(lambda one, _, name=name: one.indices.create(index=name) for name in ("Upper", "a b")),
        lambda one, _: one.search(index="nowhere", body={}),
        lambda one, _: one.search(index="nowhere", body={}, ignore_unavailable=True)["hits"],
        lambda one, _: one.search(index="nowhere*", body={})["hits"],
        lambda one, i: one.indices.delete(index=f"{i},nowhere"),
        lambda one, i: one.indices.exists(index=i),
        lambda one, i: one.indices.delete(index=i),
        lambda one, i: one.count(index=i),
        lambda one, i: one.indices.delete(index=i),
        lambda one, i: one.indices.create(index=i),
        lambda one, i: one.count(index=i),
    ],
    "mappings": [
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"note": {"type": "keyword"}}}),
        lambda one, i: one.index(index=i, id="n", body={"note": "x"}, refresh=True),
        lambda one, i: one.search(index=i, body={"query": {"term": {"note": "x"}}}),
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"year": {"type": "keyword"}}}),
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"title": {"type": "text"}}}),
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"sub.note": {"type": "text"}}}),
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"": {"type": "text"}}}),
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"q": {"type": "object"}, "r": {}}}),
        lambda one, i: one.indices.put_mapping(index=i, body={"properties": {"q": {"type": "object"}}}),
        lambda one, i: one.indices.put_mapping(index="nowhere*", body={"properties": {"q": {"type": "text"}}}),
        lambda one, i: one.indices.get_mapping(index=i),
        lambda one, i: one.indices.create(index=f"{i}-x", body={"mappings": {"properties": {"a": {"type": "odd"}}}}),
        lambda one, i: one.indices.create(index=f"{i}-fixed", body={"mappings": {"dynamic": False, **TEXT}}),
        lambda one, i: one.index(index=f"{i}-fixed", id="1", body={"b": 1}),
        lambda one, i: one.indices.get_mapping(index=f"{i}-fixed"),
        lambda one, _: one.index(index="test-other", id="1", body=NAMED, refresh=True),
        lambda one, _: one.indices.get_mapping(index="test-other"),
        *(lambda one, _, body=body: one.search(index="test-other", body=body) for body in OF_NAMED),
    ],
    "documents that fit no mapping leave no field": [
        lambda one, i: one.index(index=i, id="x", body={"new": 1, "year": "many"}),
        lambda one, i: one.index(index=i, id="x", body={"new": 1, "year": 3_000_000_000}),
        lambda one, i: one.index(index=i, id="x", body={"_id": "y"}),
        lambda one, i: one.index(index=i, id="x", body={".": "y"}),
        lambda one, i: one.index(index=i, id="x", body={"new": [1, "x"]}),
        lambda one, i: one.indices.get_mapping(index=i),
    ],
    "aliases": [
        lambda one, i: one.indices.put_alias(index=i, name=f"{i}-alias"),
        lambda one, i: one.indices.put_alias(index=i, name="bad_*"),
        lambda one, i: one.indices.get_alias(name=f"{i}-alias"),
        lambda one, i: one.search(index=f"{i}-alias", body={}),
        lambda one, i: one.index(index=f"{i}-alias", id="a", body={"title": "through"}, refresh=True),
        lambda one, i: one.get(index=f"{i}-alias", id="a"),
        lambda one, i: one.indices.delete(index=f"{i}-alias"),
        lambda one, i: one.indices.delete(index=f"{i}-ali*"),
        lambda one, i: one.indices.delete(index=f"{i}-alias,nowhere", ignore_unavailable=True),
        lambda one, i: one.indices.exists(index=i),
        lambda one, i: one.indices.update_aliases(
            body={
                "actions": [
                    {"remove": {"index": i, "alias": f"{i}-alias"}},
                    {"add": {"index": i, "alias": f"{i}-2"}},
                ]
            }
        ),
        lambda one, i: one.indices.get_alias(name=f"{i}-2"),
        lambda one, i: one.indices.update_aliases(body={"actions": [{"remove": {"index": i, "alias": "nowhere"}}]}),
        lambda one, i: one.indices.update_aliases(
            body={
                "actions": [
                    {"add": {"index": f"{i}*", "alias": f"{i}-3"}},
                    {"remove": {"index": i, "alias": "nowhere"}},
                ]
            }
        ),
        lambda one, i: one.indices.put_alias(index=f"{i}-3", name=f"{i}-4"),
        lambda one, i: one.indices.put_alias(index="nowhere*", name=f"{i}-4"),
        lambda one, i: one.indices.get(index=i)[i]["aliases"],
        lambda one, i: one.indices.get_alias(name=f"{i}-alias", ignore=404),
    ],
    "several indices": [
        lambda one, _: one.index(index="test-other", id="1", body={"title": "dog"}, refresh=True),
        *(
            lambda one, _, names=names: one.count(index=names)
            for names in ("test-library,test-other", "test-l*,test-o*", ["test-library", "test-other"])
        ),
        *(
            lambda one, _, names=names: one.count(index=names)["count"]
            for names in ("test-l*,test-o*,-test-o*", "test-*,-test-library", "-test-other,test-l*", "test-o*,-nowhere")
        ),
        lambda one, _: one.search(index="test-l*,test-o*", body={"query": {"ids": {"values": ["1"]}}})["hits"]["total"],
        lambda one, i: one.msearch(
            body=[{"index": i}, {"query": {"term": {"genre": "food"}}}, {"index": "nowhere"}, {}]
        )["responses"][0],
        lambda one, i: one.msearch(body=[{"index": "nowhere"}, {}])["responses"][0]["error"]["type"],
    ],
    "parameters of a search": [
        lambda one, i: one.search(index=i, body={}, size=1, from_=1),
        lambda one, i: one.search(index=i, body={}, _source=["title", "ye*"], size=1),
        lambda one, i: one.search(index=i, body={}, _source_includes="t*", _source_excludes="title", size=1),
        lambda one, i: one.search(index=i, body={}, filter_path="hits.hits._id,hits.total.value"),
        lambda one, i: one.search(index=i, body={}, preference="_nonsense"),
    ],
    "what is said of an index": [
        lambda one, i: one.indices.get(index=i)[i]["mappings"] == MAPPINGS,
        lambda one, i: next(row for row in one.cat.indices(format="json") if row["index"] == i)["docs.count"],
        lambda one, i: one.indices.forcemerge(index=i, max_num_segments=1)["_shards"]["failed"],
        lambda one, i: one.indices.put_settings(index=i, body={"index": {"refresh_interval": "5s"}}),
        lambda one, i: one.indices.put_settings(index=i, body={"index": {"number_of_shards": 2}}),
        lambda one, i: one.indices.get(index=i)[i]["settings"]["index"]["refresh_interval"],
        lambda one, i: one.indices.get(index=i)[i]["settings"]["index"]["number_of_replicas"],
        lambda one, _: (one.ping(), one.info()["version"]["distribution"]),
        lambda one, i: one.indices.create(
            index=f"{i}-x", body={"settings": {"analysis": {"analyzer": {"a": {"tokenizer": "odd"}}}}}
        ),
    ],
    "hidden indices": [
        lambda one, i: one.indices.create(index=f"{i}-hidden", body={"settings": {"index": {"hidden": True}}}),
        lambda one, i: list(one.indices.get(index=f"{i}-h*")),
        lambda one, i: list(one.indices.get(index=f"{i}-h*", expand_wildcards="all", ignore_unavailable=True)),
        lambda one, i: one.indices.delete(index=f"{i}-h*"),
        lambda one, i: one.indices.exists(index=f"{i}-hidden"),
        lambda one, i: one.indices.delete(index=f"{i}-hidden"),
    ],
}


@pytest.mark.parametrize("name", STEPS)
def test_both_engines_answer_other_requests_alike(engines: Engines, library: str, name: str) -> None:
    for index, request in enumerate(STEPS[name]):
        theirs, ours = (answer(engine, library, request) for engine in engines)
        assert ours == theirs, index
