"""The request for a first pass and a search by vectors, and the hits of both as one list."""

import json

import numpy as np
import pytest

from osrerank.response import parse
from osrerank.retrieval.conditions import conditions
from osrerank.retrieval.union import united
from osrerank.retrieval.vector_field import LOOKED_AT, VectorField
from osrerank.retrieval.vector_search import obstacle, two_searches
from osrerank.types import Query

FIELD = VectorField("v", 3, "float", "model", ("title", "text"), " ")
OWN = VectorField("v", 3, "float")
VECTOR = np.array([1.0, 0.0, 0.0], dtype=np.float32)
BODY = {
    "query": {"bool": {"must": {"match": {"text": "low"}}, "filter": {"term": {"year": 2000}}}},
    "from": 0, "size": 100, "aggs": {"years": {"terms": {"field": "year"}}}, "suggest": {"text": "low"},
    "min_score": 2, "highlight": {"fields": {"text": {}}}, "_source": ["title"], "fields": ["year"],
}  # fmt: skip


def lines_of(body=BODY, params=None, field=FIELD):
    searches = two_searches(body, params or {}, field, field.query(VECTOR, 7, conditions(body)), 7)
    return [json.loads(line) for line in searches.lines.splitlines()], searches


def test_both_searches_have_the_conditions_and_only_the_first_one_the_rest():
    (header, first, other, second), _ = lines_of()
    assert header == other == {}
    assert first == BODY
    assert second["query"]["knn"]["v"]["filter"] == {"bool": {"filter": [{"term": {"year": 2000}}]}}
    assert second["size"] == 7
    assert second["query"]["knn"]["v"]["k"] == 7 * LOOKED_AT
    assert second["highlight"] == {"fields": {"text": {}}, "highlight_query": BODY["query"]}
    assert not {"aggs", "suggest", "min_score"} & set(second)
    assert second["track_total_hits"] is False


def test_what_tells_a_current_vector_is_asked_for_and_named_for_removal():
    (*_, second), searches = lines_of()
    assert second["docvalue_fields"] == ["v_of"]
    assert second["fields"] == ["year", "title", "text"]
    assert searches.added == ("v_of", "title", "text")
    (*_, second), searches = lines_of({"query": BODY["query"]})
    assert "fields" not in second
    assert searches.added == ("v_of",)
    (*_, second), searches = lines_of(field=OWN)
    assert second["fields"] == ["year"]
    assert searches.added == ()


def test_url_parameters_stand_where_several_searches_have_them():
    params = {
        "search_pipeline": "_none", "routing": "a", "sort": "_score:desc,year", "_source_includes": "text,title",
        "request_timeout": 3, "typed_keys": True, "track_total_hits": True,
    }  # fmt: skip
    (header, first, *_), searches = lines_of({"query": {"match_all": {}}}, params)
    assert header == {"routing": "a"}
    assert searches.params == {"request_timeout": 3, "typed_keys": "true"}
    assert first["sort"] == [{"_score": "desc"}, "year"]
    assert first["_source"] == {"includes": ["text", "title"]}
    assert (first["search_pipeline"], first["track_total_hits"]) == ("_none", True)


@pytest.mark.parametrize(
    ("body", "params", "named"),
    [
        ({"collapse": {"field": "a"}}, {}, "collapse"),
        ({"rescore": {"window_size": 5}}, {}, "rescore"),
        ({"query": {"hybrid": {"queries": []}}}, {}, "hybrid"),
        ({}, {"q": "text:low"}, "parameter q "),
    ],
)
def test_what_cannot_have_a_second_source_is_named(body, params, named):
    assert named in obstacle(body, params)


def hit(name, score=1.0, digest=None, **more):
    found = {"_index": "i", "_id": name, "_score": score, "_source": {"title": name, "text": "words"}, **more}
    return {**found, "fields": {"v_of": [digest or FIELD.digest_of(f"{name} words")]}}


def response(*hits):
    return {"took": 3, "hits": {"total": {"value": 9}, "hits": list(hits)}, "aggregations": {"kept": {}}}


def read(union):
    ranking = parse(union.response, Query("q", "low"), ("text",), sources=union.sources)
    found = [(one.doc_id, one.first_pass, one.vectors) for one in ranking.candidates]
    return ranking, {doc_id: (first and first.rank, nearest and nearest.rank) for doc_id, first, nearest in found}


def test_vector_hits_stand_between_the_first_hits_and_the_rest():
    first = response(hit("a", 5.0), hit("b", 4.0), hit("c", 3.0), hit("d", 2.0))
    union = united(first, response(hit("b", 0.9), hit("x", 0.8), hit("c", 0.7)), FIELD, 2, ("v_of",))
    assert union.response["hits"]["total"] == {"value": 9}
    assert union.response["aggregations"] == {"kept": {}}
    assert (union.only, union.both, union.stale) == (2, 1, 0)
    assert "fields" not in union.response["hits"]["hits"][2]
    ranking, found = read(union)
    assert found == {"a": (1, None), "b": (2, 1), "x": (None, 2), "c": (None, 3), "d": (4, None)}
    assert [one.score for one in ranking.candidates] == [5.0, 4.0, 0.8, 0.7, 2.0]
    assert [one.first_pass_score for one in ranking.candidates] == [5.0, 4.0, 4.0, 4.0, 2.0]


def test_the_first_hits_do_not_depend_on_the_page():
    second = response(hit("c", 0.9))
    narrow = united(response(hit("a", 5.0), hit("b", 4.0)), second, FIELD, 2)
    wide = united(response(hit("a", 5.0), hit("b", 4.0), hit("c", 3.0)), second, FIELD, 2)
    assert read(narrow) == read(wide)


def test_a_first_pass_that_found_all_it_could_gives_others_nothing():
    ranking, _ = read(united(response(hit("a", 5.0)), response(hit("x", 0.9)), FIELD, 2))
    assert ranking.candidates[1].first_pass_score == 0.0


def test_the_vector_of_another_text_finds_nothing():
    second = response(hit("x", 0.9, FIELD.digest_of("an older text")), hit("y", 0.8), hit("a", 0.7, "0" * 32))
    union = united(response(hit("a")), second, FIELD, 100)
    assert [one["_id"] for one in union.response["hits"]["hits"]] == ["a", "y"]
    assert union.stale == 2
    assert union.sources[0] == (1, None)


def test_vectors_of_an_application_are_taken_as_they_are():
    union = united(response(), response(hit("x", digest="anything")), OWN, 100)
    assert union.only == 1


def test_equal_ids_in_two_indices_are_two_hits():
    union = united(response(hit("a")), response(hit("a", _index="other")), FIELD, 100)
    assert union.only == 1
