"""A query's boosts are separated from its text score, or a reason says why they cannot be."""

from typing import Any

import pytest

from osrerank.retrieval.boosts import Boosts, find_boosts, split_scores
from osrerank.types.reasons import Reason, ReasonCode

TEXT = "red lamp"
MATCH = {"match": {"title": TEXT}}
RECENT = {"gauss": {"added": {"origin": "now", "scale": "30d"}}}


def boosts_in(query: Any, **body: Any) -> Boosts | Reason | None:
    return find_boosts({"query": query, **body}, {}, TEXT, {"brand"})


@pytest.mark.parametrize(
    "query",
    [
        MATCH,
        {"bool": {"must": [MATCH], "filter": [{"term": {"shop": "a"}}]}},
        {"bool": {"should": [MATCH, {"match_phrase": {"title": TEXT}}]}},
        {"function_score": {"query": MATCH}},
        {"match_all": {}},
        {"bool": {"filter": [{"function_score": {"query": MATCH, "functions": [RECENT]}}]}},
        None,
        "not a query",
    ],
)
def test_a_query_without_boosts_needs_no_names(query: Any) -> None:
    assert boosts_in(query) is None


@pytest.mark.parametrize(
    "boost",
    [
        {"term": {"shop": "a"}},
        {"rank_feature": {"field": "rank"}},
        {"match": {"brand": "acme"}},
        {"match": {"title": "wireless"}},
        {"function_score": {"query": {"match_all": {}}, "functions": [RECENT]}},
    ],
)
def test_a_clause_beside_the_text_clause_is_a_boost(boost: Any) -> None:
    boosts = boosts_in({"bool": {"must": MATCH, "should": boost}})
    assert isinstance(boosts, Boosts)
    assert boosts.text_names == ("osrerank-0",)
    assert [(step.mode, step.query_names) for step in boosts.steps] == [("sum", ("osrerank-1",))]


@pytest.mark.parametrize(
    ("query", "body", "why"),
    [
        (MATCH, {"rescore": {"query": {}}}, "rescore"),
        (MATCH, {"indices_boost": [{"goods": 2}]}, "indices_boost"),
        ({"script_score": {"query": MATCH, "script": {"source": "doc['stock'].value"}}}, {}, "script_score"),
        ({"function_score": {"query": MATCH, "random_score": {}}}, {}, "random_score"),
        ({"function_score": {"query": MATCH, "script_score": {"script": "_score + 1"}}}, {}, "_score"),
        ({"function_score": {"query": MATCH, "script_score": {"script": {"id": "mine"}}}}, {}, "stored"),
        ({"dis_max": {"queries": [MATCH, {"rank_feature": {"field": "rank"}}]}}, {}, "dis_max"),
        ({"function_score": {"query": {"term": {"shop": "a"}}, "functions": [RECENT]}}, {}, "no part"),
    ],
)
def test_a_query_whose_boosts_cannot_be_separated_has_a_reason(query: Any, body: Any, why: str) -> None:
    reason = boosts_in(query, **body)
    assert isinstance(reason, Reason)
    assert reason.code is ReasonCode.BOOSTS
    assert why in reason.message


def response_with(score: float, **scores: float) -> dict[str, Any]:
    matched = {name.replace("_", "-"): value for name, value in scores.items()}
    return {"hits": {"hits": [{"_id": "1", "_score": score, "matched_queries": matched}]}}


def test_named_clauses_that_do_not_add_up_to_the_score_have_a_reason() -> None:
    boosts = boosts_in({"function_score": {"query": MATCH, "functions": [RECENT]}})
    assert isinstance(boosts, Boosts)
    parts, answer = split_scores(response_with(3.0, osrerank_0=2.0, osrerank_1=1.5), boosts)
    assert parts == ({"text": 2.0, "boost": 1.5},)
    assert "matched_queries" not in answer["hits"]["hits"][0]
    reason, _ = split_scores(response_with(3.1, osrerank_0=2.0, osrerank_1=1.5), boosts)
    assert isinstance(reason, Reason)
    reason, _ = split_scores(
        {"hits": {"hits": [{"_id": "1", "_score": 3.0, "matched_queries": ["osrerank-0"]}]}}, boosts
    )
    assert isinstance(reason, Reason)
