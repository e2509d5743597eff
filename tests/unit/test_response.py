"""Parsing search responses, and writing reranked ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank import MonoStage
from osrerank.errors import ResponseFormatError
from osrerank.response import Page, has_own_order, make_candidates, parse_hits, read_hit_text
from osrerank.testing import FunctionScorer
from osrerank.types import Query, Ranking
from osrerank.types.reasons import Reason, ReasonCode
from tests.rankings import BY_LENGTH, answer_of, response_of

QUERY = Query("q", "low blood pressure")


def hit(source=None, **raw):
    return {"_id": "1", "_source": source or {}, **raw}


@pytest.mark.parametrize(
    ("source", "fields", "text"),
    [
        ({"title": "T", "text": "B"}, ["title", "text"], "T B"),
        ({"text": "B"}, ["title", "text"], "B"),
        ({"title": "", "text": "B"}, ["title", "text"], "B"),
        ({"title": "T"}, ["text"], None),
        ({"text": ""}, ["text"], ""),
        ({"text": ["a", "b"]}, ["text"], "a b"),
        ({"a": {"b": "x"}}, ["a.b"], "x"),
        ({"a.b": "x"}, ["a.b"], "x"),
        ({"a": [{"b": "x"}, {"b": ["y", "z"]}, {"c": "n"}]}, ["a.b"], "x y z"),
        ({"year": 1999, "flag": True}, ["year", "flag"], "1999 true"),
        ({"text": None}, ["text"], None),
        ({"text": {"sub": "x"}}, ["text"], None),
    ],
)
def test_the_text_of_a_hit_joins_its_fields(source, fields, text):
    assert read_hit_text(hit(source), fields) == text


def test_the_text_of_a_hit_is_read_from_the_fields_api():
    assert read_hit_text(hit(fields={"text": ["a", "b"]}), ["title", "text"]) == "a b"
    assert read_hit_text(hit(fields={"a.b": ["x", "y"]}), ["a.b"]) == "x y"
    assert read_hit_text(hit(fields={"a": [{"b": ["x"]}, {"b": ["y"]}]}), ["a.b"]) == "x y"
    assert read_hit_text(hit(fields={"a": [{"c": ["x"]}]}), ["a.b"]) is None


@pytest.mark.parametrize(
    ("hits", "own"),
    [
        ([{"_id": "1", "_score": None, "sort": [3]}], True),
        ([{"_id": "1", "_score": 2.0, "sort": [2.0, 7]}], False),
        ([{"_id": "1", "_score": None, "_rank": 1}], False),
        ([{"_id": "1"}], False),
        ([], False),
    ],
)
def test_hits_sorted_by_a_field_are_parsed_without_scores(hits, own):
    assert has_own_order(hits) is own


@pytest.mark.parametrize(
    ("response", "path"),
    [
        ({}, "$.hits.hits"),
        ({"hits": []}, "$.hits.hits"),
        ({"hits": {"hits": {}}}, "$.hits.hits"),
        ({"hits": {"hits": [{"_id": "a"}, {"_score": 1}]}}, "$.hits.hits[1]._id"),
    ],
)
def test_a_malformed_search_response_is_refused_with_its_path(response, path):
    with pytest.raises(ResponseFormatError) as caught:
        make_candidates(parse_hits(response), ["text"])
    assert caught.value.path == path


def test_an_id_in_two_indices_is_two_candidates():
    response = response_of(["a", "b"])
    for index, hit in enumerate(response["hits"]["hits"]):
        hit.update(_id="same", _index=f"i{index}")
    ranking = MonoStage(BY_LENGTH).rerank(Ranking(QUERY, make_candidates(parse_hits(response), ["text"])))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["i0/same", "i1/same"]
    merged = answer_of(response, ranking, Page())
    assert [hit["_index"] for hit in merged["hits"]["hits"]] == ["i0", "i1"]


def test_an_id_with_two_routings_is_two_candidates():
    response = response_of(["a", "b"])
    for index, hit in enumerate(response["hits"]["hits"]):
        hit.update(_id="same", _routing=f"r{index}")
    ranking = MonoStage(BY_LENGTH).rerank(Ranking(QUERY, make_candidates(parse_hits(response), ["text"])))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["notes/r0/same", "notes/r1/same"]


@pytest.mark.parametrize(("own", "whole"), [({"took": 7}, 57), ({}, 50)])
def test_the_time_of_reranking_is_added_to_the_engines(own, whole):
    response = {name: value for name, value in response_of(["a"]).items() if name != "took"} | own
    ranking = MonoStage(BY_LENGTH).rerank(Ranking(QUERY, make_candidates(parse_hits(response), ("text",))))
    assert answer_of(response, ranking, Page(), rerank_ms=49.6)["took"] == whole


def test_added_fields_are_removed_from_hits():
    response = response_of(["a"])
    response["hits"]["hits"][0]["fields"] = {"text": ["a"], "date": ["1999"]}
    ranking = MonoStage(BY_LENGTH).rerank(Ranking(QUERY, make_candidates(parse_hits(response), ["text"])))
    merged = answer_of(response, ranking, Page(added_fields=("text",)))
    assert merged["hits"]["hits"][0]["fields"] == {"date": ["1999"]}
    merged = answer_of(response, ranking, Page(added_fields=("text", "date")))
    assert "fields" not in merged["hits"]["hits"][0]
    answer = answer_of(response, Reason(ReasonCode.DEADLINE, "late"), Page(added_fields=("text", "date")))
    assert "fields" not in answer["hits"]["hits"][0]


def test_min_score_drops_improbable_and_unscored_hits():
    response = response_of(["aaaa", "", "b"])
    ranking = MonoStage(FunctionScorer(lambda _q, text: len(text) - 1.0), depth=2).rerank(
        Ranking(QUERY, make_candidates(parse_hits(response), ["text"]))
    )
    merged = answer_of(response, ranking, Page(min_score=0.5))
    assert [hit["_id"] for hit in merged["hits"]["hits"]] == ["d0"]
    assert merged["hits"]["total"]["value"] == 3


def test_the_explanation_of_a_hit_names_each_stage():
    ranking = MonoStage(BY_LENGTH, depth=2).rerank(
        Ranking(QUERY, make_candidates(parse_hits(response_of(["a", "bbb", "c"])), ["text"]))
    )
    merged = answer_of(response_of(["a", "bbb", "c"]), ranking, Page(explain=True))
    first, _, last = (hit["_rerank"]["explanation"] for hit in merged["hits"]["hits"])
    assert first[0].startswith("first_pass: rank 2, score 2.0000")
    assert first[1].startswith("mono: rank 1, up 1 from 2, logit 3.0000")
    assert last[-1] == "_score 0.500000 = 0 (stages passed) + 0.500000 (first_pass score between 0 and 1)"


def test_a_response_that_is_not_reranked_is_cut_to_the_page_and_marked():
    response = response_of(["a", "b", "c"])
    marked = answer_of(response, Reason(ReasonCode.REFUSED, "because", "too deep"), Page(offset=1, size=1))
    assert [hit["_id"] for hit in marked["hits"]["hits"]] == ["d1"]
    assert marked["hits"]["hits"][0]["_score"] == 2.0
    assert marked["hits"]["hits"][0]["_rerank"] == {"first_pass": {"score": 2.0, "rank": 2}}
    marks = {"applied": False, "reason": "because (too deep)", "reason_code": "refused"}
    assert marked["rerank"] == {**marks, "first_pass_took_ms": 3, "warnings": [], "stages": []}


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text("ab", max_size=2))


@given(st.lists(LEAVES, max_size=6), st.lists(st.lists(LEAVES, max_size=3), max_size=4))
def test_a_malformed_section_of_a_response_is_named_with_its_value(values, groups):
    def as_text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)

    source = {"plain": values, "o": [{"t": group} for group in groups]}
    flat = {"plain": values, "o.t": [value for group in groups for value in group]}
    for name, every in flat.items():
        sections = make_candidates([{"_id": "1", "_source": source}], [name])[0].sections
        assert [section.text for section in sections] == [as_text(value) for value in every if value not in (None, "")]
        assert all(as_text(every[section.value or 0]) == section.text for section in sections)
