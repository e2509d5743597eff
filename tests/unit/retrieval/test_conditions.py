"""What a query requires of documents besides their text."""

import pytest

from osrerank.retrieval.conditions import conditions

TEXT = {"match": {"text": "low pressure"}}
YEAR, DRAFT = {"range": {"year": {"gte": 2000}}}, {"term": {"draft": True}}


def only(*clauses):
    return {"bool": {"filter": list(clauses)}}


@pytest.mark.parametrize(
    "query",
    [
        None,
        TEXT,
        {"match_all": {}},
        {"bool": {"must": [TEXT], "should": [YEAR]}},
        {"bool": {"must": TEXT}},
        {"bool": {"should": [TEXT, YEAR], "minimum_should_match": 1}},
        {"dis_max": {"queries": [TEXT, {"match": {"title": "low"}}]}},
        {"nested": {"path": "parts", "query": TEXT}},
        {"boosting": {"positive": TEXT, "negative": DRAFT, "negative_boost": 0.5}},
        {"function_score": {"query": TEXT, "random_score": {}}},
    ],
)
def test_a_query_for_a_text_requires_nothing(query):
    assert conditions({"query": query} if query else {}) is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"bool": {"must": TEXT, "filter": YEAR}}, only(YEAR)),
        ({"bool": {"must": [TEXT, DRAFT], "filter": [YEAR]}}, only(YEAR, DRAFT)),
        ({"bool": {"must": TEXT, "must_not": DRAFT}}, {"bool": {"must_not": [DRAFT]}}),
        ({"bool": {"must": TEXT, "filter": {"match": {"kind": "paper"}}}}, only({"match": {"kind": "paper"}})),
        ({"bool": {"must": {"bool": {"must": TEXT, "filter": YEAR}}}}, only(YEAR)),
        ({"function_score": {"query": {"bool": {"must": TEXT, "filter": YEAR}}}}, only(YEAR)),
        ({"script_score": {"query": {"bool": {"filter": YEAR}}, "script": {}}}, only(YEAR)),
        ({"constant_score": {"filter": YEAR}}, only({"constant_score": {"filter": YEAR}})),
        ({"bool": {"must": [TEXT, {"term": {"match": "a field of that name"}}]}},
         only({"term": {"match": "a field of that name"}})),
        ({"bool": {"should": [YEAR, DRAFT]}}, only({"bool": {"should": [YEAR, DRAFT], "minimum_should_match": 1}})),
        ({"bool": {"must": TEXT, "should": [YEAR, DRAFT], "minimum_should_match": 2}},
         only({"bool": {"should": [YEAR, DRAFT], "minimum_should_match": 2}})),
    ],
)  # fmt: skip
def test_filters_and_clauses_without_text_are_required(query, expected):
    assert conditions({"query": query}) == expected


def test_a_post_filter_is_required_too():
    body = {"query": {"bool": {"must": TEXT, "filter": YEAR, "must_not": [DRAFT]}}, "post_filter": {"term": {"a": 1}}}
    assert conditions(body) == {"bool": {"filter": [YEAR, {"term": {"a": 1}}], "must_not": [DRAFT]}}
