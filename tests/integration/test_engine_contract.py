"""The same requests on the real OpenSearch and on the embedded engine: shapes, errors, visibility."""

from collections.abc import Iterator

import pytest
from opensearchpy import ConflictError, NotFoundError, OpenSearch, RequestError, helpers

from osrerank import connect
from tests.engine_library import DOCUMENTS, MAPPINGS, QUERIES, fill, ids

pytestmark = pytest.mark.integration


@pytest.fixture
def library(engine: OpenSearch, index_name: str) -> str:
    """An index of five documents that the test may change."""
    fill(engine, index_name)
    return index_name


@pytest.fixture(scope="module")
def books(engine_url: str) -> Iterator[str]:
    """An index of five documents that no test changes."""
    client = connect(engine_url)
    fill(client, "test-books")
    yield "test-books"
    client.indices.delete(index="test-books")
    client.close()


@pytest.mark.parametrize("name", QUERIES)
def test_finds(engine: OpenSearch, books: str, name: str) -> None:
    query, expected = QUERIES[name]
    response = engine.search(index=books, body={"query": query})
    if expected is not None:
        assert ids(response) == expected
    scores = [hit["_score"] for hit in response["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert response["hits"]["total"] == {"value": len(scores), "relation": "eq"}
    assert response["hits"]["max_score"] == (scores[0] if scores else None)
    assert response["timed_out"] is False
    assert {key: response["_shards"][key] for key in ("total", "successful", "skipped", "failed")} == {
        "total": 1,
        "successful": 1,
        "skipped": 0,
        "failed": 0,
    }


REFUSED = {
    "unknown clause": {"query": {"nonsense": {}}},
    "two clauses": {"query": {"match": {"body": "a"}, "term": {"genre": "b"}}},
    "unknown option": {"query": {"match": {"body": {"query": "a", "nonsense": 1}}}},
    "text as a number": {"query": {"match": {"year": "many"}}},
    "unknown key": {"nonsense": 1},
    "negative size": {"size": -1},
    "window": {"from": 9_999, "size": 2},
    "sort on text": {"sort": ["title"]},
    "sort on nothing": {"sort": ["nowhere"]},
    "counting text": {"aggs": {"a": {"terms": {"field": "title"}}}},
    "negative boost": {"query": {"match_all": {"boost": -1}}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(engine: OpenSearch, books: str, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        engine.search(index=books, body=REFUSED[name])
    assert caught.value.status_code == 400
    assert caught.value.info["status"] == 400
    assert caught.value.info["error"]["root_cause"][0]["type"]
    if name not in ("window", "negative size", "sort on text", "counting text", "negative boost"):
        return
    assert caught.value.info["error"]["root_cause"][0]["type"] in ("illegal_argument_exception", "parsing_exception")


def test_unknown_index(engine: OpenSearch) -> None:
    with pytest.raises(NotFoundError) as caught:
        engine.search(index="nowhere", body={})
    assert caught.value.error == "index_not_found_exception"
    cause = caught.value.info["error"]["root_cause"][0]
    assert cause == {
        "type": "index_not_found_exception",
        "reason": "no such index [nowhere]",
        "index": "nowhere",
        "resource.id": "nowhere",
        "resource.type": "index_or_alias",
        "index_uuid": "_na_",
    }
    assert engine.search(index="nowhere", body={}, ignore_unavailable=True)["hits"]["hits"] == []
    assert engine.search(index="nowhere*", body={})["hits"]["hits"] == []


def test_index_is_created_once(engine: OpenSearch, library: str) -> None:
    with pytest.raises(RequestError) as caught:
        engine.indices.create(index=library)
    assert caught.value.error == "resource_already_exists_exception"
    assert caught.value.info["error"]["index"] == library
    assert engine.indices.create(index=library, ignore=400)["status"] == 400
    assert engine.indices.exists(index=library)
    assert not engine.indices.exists(index="nowhere")


def test_index_names(engine: OpenSearch) -> None:
    for name in ("Upper", "_hidden", "a b"):
        with pytest.raises(RequestError) as caught:
            engine.indices.create(index=name)
        assert caught.value.error == "invalid_index_name_exception"


def test_get_and_exists(engine: OpenSearch, books: str) -> None:
    found = engine.get(index=books, id="1")
    assert found["_source"] == DOCUMENTS["1"]
    assert (found["_index"], found["_id"], found["found"], found["_version"]) == (books, "1", True, 1)
    assert engine.get(index=books, id="1", _source_includes="title")["_source"] == {"title": "Foxes and dogs"}
    assert engine.exists(index=books, id="1")
    assert not engine.exists(index=books, id="9")
    with pytest.raises(NotFoundError) as caught:
        engine.get(index=books, id="9")
    assert caught.value.info == {"_index": books, "_id": "9", "found": False}
    assert engine.get_source(index=books, id="2") == DOCUMENTS["2"]


def test_mget(engine: OpenSearch, books: str) -> None:
    answer = engine.mget(index=books, body={"ids": ["2", "9"]})
    assert [(one["_id"], one["found"]) for one in answer["docs"]] == [("2", True), ("9", False)]
    answer = engine.mget(body={"docs": [{"_index": books, "_id": "3", "_source": ["year"]}]})
    assert answer["docs"][0]["_source"] == {"year": 2005}


def test_writes_are_gettable_at_once_and_searchable_after_refresh(engine: OpenSearch, library: str) -> None:
    engine.indices.put_settings(index=library, body={"index": {"refresh_interval": "-1"}})
    answer = engine.index(index=library, id="6", body={"title": "New zebra"})
    assert (answer["result"], answer["_version"]) == ("created", 1)
    assert engine.get(index=library, id="6")["_source"] == {"title": "New zebra"}
    assert ids(engine.search(index=library, body={"query": {"match": {"title": "zebra"}}})) == []
    engine.indices.refresh(index=library)
    assert ids(engine.search(index=library, body={"query": {"match": {"title": "zebras"}}})) == ["6"]
    answer = engine.index(index=library, id="6", body={"title": "Old zebra"}, refresh=True)
    assert (answer["result"], answer["_version"]) == ("updated", 2)
    assert ids(engine.search(index=library, body={"query": {"match": {"title": "new"}}})) == []
    assert engine.delete(index=library, id="6", refresh=True)["result"] == "deleted"
    assert ids(engine.search(index=library, body={"query": {"match": {"title": "zebra"}}})) == []
    with pytest.raises(NotFoundError) as caught:
        engine.delete(index=library, id="6")
    assert caught.value.info["result"] == "not_found"
    assert engine.count(index=library)["count"] == 5


def test_create_refuses_what_exists(engine: OpenSearch, library: str) -> None:
    with pytest.raises(ConflictError) as caught:
        engine.create(index=library, id="1", body={"title": "x"})
    assert caught.value.error == "version_conflict_engine_exception"
    with pytest.raises(ConflictError):
        engine.index(index=library, id="1", body={"title": "x"}, op_type="create")


def test_update(engine: OpenSearch, library: str) -> None:
    answer = engine.update(index=library, id="1", body={"doc": {"year": 2000}}, refresh=True)
    assert (answer["result"], answer["_version"]) == ("updated", 2)
    assert engine.get(index=library, id="1")["_source"] == {**DOCUMENTS["1"], "year": 2000}
    assert engine.update(index=library, id="1", body={"doc": {"year": 2000}})["result"] == "noop"
    with pytest.raises(NotFoundError) as caught:
        engine.update(index=library, id="9", body={"doc": {"year": 2000}})
    assert caught.value.error == "document_missing_exception"
    assert engine.update(index=library, id="9", body={"doc": {"year": 1}, "doc_as_upsert": True})["result"] == "created"


def test_bulk_answers_each_action(engine: OpenSearch, library: str) -> None:
    answer = engine.bulk(
        body=[
            {"create": {"_index": library, "_id": "1"}},
            {"title": "again"},
            {"index": {"_index": library, "_id": "7"}},
            {"year": "not a number"},
            {"delete": {"_index": library, "_id": "9"}},
            {"update": {"_index": library, "_id": "2"}},
            {"doc": {"year": 2006}},
            {"index": {"_index": library}},
            {"title": "no id"},
        ],
        refresh=True,
    )
    assert answer["errors"] is True
    statuses = [(action, item["status"]) for one in answer["items"] for action, item in one.items()]
    assert statuses == [("create", 409), ("index", 400), ("delete", 404), ("update", 200), ("index", 201)]
    assert answer["items"][0]["create"]["error"]["type"] == "version_conflict_engine_exception"
    assert answer["items"][1]["index"]["error"]["type"] == "mapper_parsing_exception"
    assert len(answer["items"][4]["index"]["_id"]) >= 20
    assert engine.count(index=library)["count"] == 6


def test_bulk_malformed(engine: OpenSearch, library: str) -> None:
    with pytest.raises(RequestError) as caught:
        engine.bulk(body='{"nonsense": {"_index": "a"}}\n{}\n')
    assert caught.value.error == "illegal_argument_exception"


def test_helpers_bulk(engine: OpenSearch, index_name: str) -> None:
    actions = ({"_index": index_name, "_id": str(number), "text": f"number {number}"} for number in range(700))
    assert helpers.bulk(engine, actions, refresh=True) == (700, [])
    assert engine.count(index=index_name)["count"] == 700


def test_dynamic_fields(engine: OpenSearch, index_name: str) -> None:
    engine.index(
        index=index_name,
        id="1",
        body={
            "name": "Ada Lovelace",
            "born": "1815-12-10",
            "age": 36,
            "rate": 1.5,
            "ok": True,
            "at": {"city": "London"},
            "tags": ["a", "b"],
            "nothing": None,
        },
        refresh=True,
    )
    properties = engine.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    text = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    assert properties == {
        "name": text,
        "born": {"type": "date"},
        "age": {"type": "long"},
        "rate": {"type": "float"},
        "ok": {"type": "boolean"},
        "at": {"properties": {"city": text}},
        "tags": text,
    }
    for query in (
        {"match": {"name": "ada"}},
        {"term": {"name.keyword": "Ada Lovelace"}},
        {"match": {"at.city": "london"}},
        {"term": {"tags.keyword": "b"}},
        {"range": {"born": {"lt": "1816"}}},
        {"exists": {"field": "at"}},
    ):
        assert ids(engine.search(index=index_name, body={"query": query})) == ["1"], query


def test_mapping_grows_and_does_not_change(engine: OpenSearch, library: str) -> None:
    engine.indices.put_mapping(index=library, body={"properties": {"note": {"type": "keyword"}}})
    engine.index(index=library, id="6", body={"note": "x"}, refresh=True)
    assert ids(engine.search(index=library, body={"query": {"term": {"note": "x"}}})) == ["6"]
    with pytest.raises(RequestError) as caught:
        engine.indices.put_mapping(index=library, body={"properties": {"year": {"type": "keyword"}}})
    assert caught.value.error == "illegal_argument_exception"
    with pytest.raises(RequestError) as caught:
        engine.indices.create(index=f"{library}-x", body={"mappings": {"properties": {"a": {"type": "nonsense"}}}})
    assert caught.value.error == "mapper_parsing_exception"


def test_strict_mapping(engine: OpenSearch, index_name: str) -> None:
    engine.indices.create(
        index=index_name, body={"mappings": {"dynamic": "strict", "properties": {"a": {"type": "text"}}}}
    )
    with pytest.raises(RequestError) as caught:
        engine.index(index=index_name, body={"b": 1})
    assert caught.value.error == "strict_dynamic_mapping_exception"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (False, None),
        (True, DOCUMENTS["3"]),
        ("title", {"title": "Cooking foxtail"}),
        (["year", "pri*"], {"year": 2005, "price": 10.0}),
        ({"excludes": ["t*", "body", "seen", "open", "price"]}, {"genre": "food", "year": 2005}),
        ({"includes": ["t*", "year"], "excludes": ["year"]}, {"title": "Cooking foxtail"}),
        (["nothing"], {}),
    ],
)
def test_source(engine: OpenSearch, books: str, given: object, expected: dict | None) -> None:
    response = engine.search(index=books, body={"query": {"ids": {"values": ["3"]}}, "_source": given})
    assert response["hits"]["hits"][0].get("_source") == expected


def test_nested_source(engine: OpenSearch, index_name: str) -> None:
    source = {"a": {"b": 1, "c": [{"d": 1, "e": 2}, {"d": 3}]}, "f": []}
    engine.index(index=index_name, id="1", body=source, refresh=True)
    for wanted, expected in (
        ("a.b", {"a": {"b": 1}}),
        ("a", {"a": source["a"]}),
        ("a.c.d", {"a": {"c": [{"d": 1}, {"d": 3}]}}),
        ({"excludes": "a.c"}, {"a": {"b": 1}, "f": []}),
        ("*.e", {"a": {"c": [{"e": 2}]}}),
    ):
        hit = engine.search(index=index_name, body={"_source": wanted})["hits"]["hits"][0]
        assert hit["_source"] == expected, wanted


def test_pages(engine: OpenSearch, books: str) -> None:
    pages = [ids(engine.search(index=books, body={"from": start, "size": 2})) for start in (0, 2, 4, 6)]
    assert pages == [["1", "2"], ["3", "4"], ["5"], []]
    assert ids(engine.search(index=books, body={}, size=1, from_=1)) == ["2"]
    response = engine.search(index=books, body={"size": 0})
    assert (response["hits"]["max_score"], response["hits"]["hits"]) == (None, [])


def test_totals(engine: OpenSearch, books: str) -> None:
    total = engine.search(index=books, body={"track_total_hits": 2})["hits"]["total"]
    assert total == {"value": 2, "relation": "gte"}
    assert "total" not in engine.search(index=books, body={"track_total_hits": False})["hits"]
    assert engine.search(index=books, body={}, rest_total_hits_as_int=True)["hits"]["total"] == 5


def test_sort(engine: OpenSearch, library: str) -> None:
    response = engine.search(index=library, body={"sort": [{"year": "desc"}, "price"]})
    assert ids(response) == ["4", "2", "3", "1", "5"]
    hit = response["hits"]["hits"][1]
    assert (hit["sort"], hit["_score"], response["hits"]["max_score"]) == ([2005, 2.5], None, None)
    assert ids(engine.search(index=library, body={"sort": ["genre", {"_doc": "asc"}]})) == ["1", "2", "3", "4", "5"]
    body = {"query": {"match": {"body": "lazy dogs"}}, "sort": ["_score", {"year": "asc"}]}
    assert ids(engine.search(index=library, body=body)) == ["1", "2", "5"]
    engine.index(index=library, id="6", body={"title": "no year"}, refresh=True)
    assert ids(engine.search(index=library, body={"sort": [{"year": {"order": "desc"}}]}))[-1] == "6"
    assert (
        ids(engine.search(index=library, body={"sort": [{"year": {"order": "desc", "missing": "_first"}}]}))[0] == "6"
    )
    body = {"sort": [{"year": "asc"}, {"price": "asc"}], "search_after": [2005, 2.5], "size": 2}
    assert ids(engine.search(index=library, body=body)) == ["3", "4"]
    assert ids(engine.search(index=library, sort="year:desc,price:asc", size=2)) == ["4", "2"]


def test_terms_aggregation(engine: OpenSearch, books: str) -> None:
    body = {
        "size": 0,
        "query": {"range": {"year": {"gte": 1990}}},
        "aggs": {
            "genres": {"terms": {"field": "genre"}},
            "years": {"terms": {"field": "year", "order": {"_key": "asc"}}},
            "open": {"terms": {"field": "open"}},
            "one": {"terms": {"field": "genre", "size": 1}},
        },
    }
    found = engine.search(index=books, body=body)["aggregations"]
    assert found["genres"] == {
        "doc_count_error_upper_bound": 0,
        "sum_other_doc_count": 0,
        "buckets": [
            {"key": "animal", "doc_count": 2},
            {"key": "food", "doc_count": 1},
            {"key": "science", "doc_count": 1},
        ],
    }
    assert [(one["key"], one["doc_count"]) for one in found["years"]["buckets"]] == [(1999, 1), (2005, 2), (2011, 1)]
    assert found["open"]["buckets"][0] == {"key": 1, "key_as_string": "true", "doc_count": 3}
    assert (found["one"]["sum_other_doc_count"], len(found["one"]["buckets"])) == (2, 1)


def test_post_filter_and_min_score(engine: OpenSearch, books: str) -> None:
    body = {"post_filter": {"term": {"genre": "food"}}, "aggs": {"g": {"terms": {"field": "genre"}}}}
    response = engine.search(index=books, body=body)
    assert ids(response) == ["3"]
    assert response["hits"]["total"]["value"] == 1
    assert len(response["aggregations"]["g"]["buckets"]) == 3
    every = engine.search(index=books, body={"query": {"match": {"body": "lazy dogs"}}})["hits"]["hits"]
    limit = every[1]["_score"] - 1e-5
    response = engine.search(index=books, body={"query": {"match": {"body": "lazy dogs"}}, "min_score": limit})
    assert (ids(response), response["hits"]["total"]["value"]) == ([hit["_id"] for hit in every[:2]], 2)


def test_highlight(engine: OpenSearch, books: str) -> None:
    body = {"query": {"match": {"body": "dog"}}, "highlight": {"fields": {"body": {"type": "plain"}}}}
    hits = engine.search(index=books, body=body)["hits"]["hits"]
    assert hits[0]["highlight"] == {"body": ["<em>Dogs</em> sleep, <em>dogs</em> eat and <em>dogs</em> play all day"]}
    body["highlight"] = {
        "pre_tags": ["["],
        "post_tags": ["]"],
        "fields": {"body": {"number_of_fragments": 0}, "title": {}},
    }
    hits = engine.search(index=books, body=body)["hits"]["hits"]
    assert hits[1]["highlight"] == {"body": ["The quick brown fox jumps over the lazy [dog]"]}


def test_fields(engine: OpenSearch, books: str) -> None:
    body = {"query": {"ids": {"values": ["1"]}}, "fields": ["title", "ye*"], "_source": False}
    hit = engine.search(index=books, body=body)["hits"]["hits"][0]
    assert hit["fields"] == {"title": ["Foxes and dogs"], "year": [1999]}
    assert "_source" not in hit


def test_aliases(engine: OpenSearch, library: str) -> None:
    alias = f"{library}-alias"
    engine.indices.put_alias(index=library, name=alias)
    assert engine.indices.exists_alias(name=alias)
    assert engine.indices.get_alias(name=alias) == {library: {"aliases": {alias: {}}}}
    hit = engine.search(index=alias, body={})["hits"]["hits"][0]
    assert hit["_index"] == library
    assert engine.index(index=alias, id="6", body={"title": "through"}, refresh=True)["_index"] == library
    assert engine.get(index=alias, id="6")["found"]
    engine.indices.update_aliases(
        body={
            "actions": [
                {"remove": {"index": library, "alias": alias}},
                {"add": {"index": library, "alias": f"{alias}2"}},
            ]
        }
    )
    assert not engine.indices.exists_alias(name=alias)
    engine.indices.delete_alias(index=library, name=f"{alias}2")
    with pytest.raises(NotFoundError):
        engine.indices.get_alias(name=alias)


def test_several_indices(engine: OpenSearch, library: str) -> None:
    other = f"{library}-2"
    engine.index(index=other, id="1", body={"title": "dog"}, refresh=True)
    for expression in (f"{library},{other}", f"{library}*", [library, other]):
        assert engine.count(index=expression)["count"] == 6
    assert engine.search(index=f"{library}*", body={"query": {"ids": {"values": ["1"]}}})["hits"]["total"]["value"] == 2
    engine.indices.delete(index=other)


def test_msearch(engine: OpenSearch, books: str) -> None:
    lines = [{"index": books}, {"query": {"term": {"genre": "food"}}}, {"index": "nowhere"}, {}]
    first, second = engine.msearch(body=lines)["responses"]
    assert (ids(first), first["status"]) == (["3"], 200)
    assert (second["status"], second["error"]["type"]) == (404, "index_not_found_exception")


def test_about_indices(engine: OpenSearch, library: str) -> None:
    assert engine.ping()
    assert engine.info()["version"]["distribution"] == "opensearch"
    assert engine.cluster.health()["status"] in ("green", "yellow")
    (row,) = engine.cat.indices(index=library, format="json")
    assert (row["index"], row["docs.count"]) == (library, "5")
    assert engine.cat.count(index=library, format="json")[0]["count"] == "5"
    assert library in engine.cat.indices(index=library)
    assert engine.indices.stats(index=library)["_all"]["primaries"]["docs"]["count"] == 5
    assert engine.indices.get_settings(index=library)[library]["settings"]["index"]["number_of_replicas"] == "0"
    described = engine.indices.get(index=library)[library]
    assert described["mappings"] == MAPPINGS
    for answer in (engine.indices.flush(index=library), engine.indices.forcemerge(index=library, max_num_segments=1)):
        assert answer["_shards"]["failed"] == 0
    engine.indices.put_settings(index=library, body={"index": {"number_of_replicas": 0, "refresh_interval": "5s"}})
    settings = engine.indices.get_settings(index=library)[library]["settings"]["index"]
    assert settings["refresh_interval"] == "5s"


def test_custom_analyzer(engine: OpenSearch, index_name: str) -> None:
    analysis = {
        "filter": {
            "our_stop": {"type": "stop", "stopwords": ["foo"]},
            "stem": {"type": "stemmer", "language": "english"},
        },
        "analyzer": {"ours": {"tokenizer": "whitespace", "filter": ["lowercase", "our_stop", "stem", "asciifolding"]}},
    }
    engine.indices.create(index=index_name, body={"settings": {"analysis": analysis}})
    answer = engine.indices.analyze(index=index_name, body={"analyzer": "ours", "text": "Foo Running caf\u00e9 x.y"})
    assert [(one["token"], one["position"]) for one in answer["tokens"]] == [("run", 1), ("cafe", 2), ("x.y", 3)]
    with pytest.raises(RequestError):
        engine.indices.create(
            index=f"{index_name}-x", body={"settings": {"analysis": {"analyzer": {"a": {"tokenizer": "nonsense"}}}}}
        )


def test_term_vectors(engine: OpenSearch, books: str) -> None:
    answer = engine.termvectors(index=books, id="2", fields="body", term_statistics=True)
    terms = answer["term_vectors"]["body"]["terms"]
    assert {term: body["term_freq"] for term, body in terms.items()} == {
        "dog": 3,
        "sleep": 1,
        "eat": 1,
        "plai": 1,
        "all": 1,
        "dai": 1,
    }
    assert terms["dog"]["doc_freq"] == 2
    assert answer["term_vectors"]["body"]["field_statistics"]["doc_count"] == 5
    answer = engine.mtermvectors(index=books, body={"ids": ["1", "9"]}, fields="body")
    assert [one["found"] for one in answer["docs"]] == [True, False]


def test_filter_path(engine: OpenSearch, books: str) -> None:
    body = {"query": {"ids": {"values": ["1"]}}}
    answer = engine.search(index=books, body=body, filter_path="hits.hits._id,hits.total.value")
    assert answer == {"hits": {"total": {"value": 1}, "hits": [{"_id": "1"}]}}


def test_delete_index(engine: OpenSearch, library: str) -> None:
    assert engine.indices.delete(index=library) == {"acknowledged": True}
    with pytest.raises(NotFoundError):
        engine.count(index=library)
    with pytest.raises(NotFoundError):
        engine.indices.delete(index=library)
    engine.indices.create(index=library)
    assert engine.count(index=library)["count"] == 0
