"""Searches without one text to rerank by, and hits below a threshold."""

import pytest

from osrerank.errors import ConfigError
from osrerank.testing import FunctionScorer
from tests.rankings import client_for, ids


def match(text):
    return {"match": {"text": text}}


def asked(client):
    return client.transport.requests[-1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"query": {"match_all": {}}}, "the query has no text to rerank by"),
        ({"query": {"term": {"tag": "blood"}}}, "the query has no text to rerank by"),
        ({}, "the query has no text to rerank by"),
        ({"query": {"bool": {"must": [*map(match, ("low", "high"))]}}}, "the query asks for several texts"),
    ],
)
def test_a_query_without_one_text_keeps_the_first_pass(body, reason):
    client = client_for(["a", "bbb"])
    response = client.search(index="i", body=body, size=2, rerank={"depth": 50})
    assert (ids(response), response["rerank"]["applied"]) == (["d0", "d1"], False)
    found = response["rerank"]["reason"]
    for way in (reason, "rerank={'query': ...}", "ext.rerank.query_context.query_text", "single match, multi_match"):
        assert way in found
    assert asked(client)["body"] == body
    assert int(asked(client)["params"]["size"]) == 2
    with pytest.raises(ConfigError, match=reason):
        client.search(index="i", body=body, rerank={"on_failure": "raise"})


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"match": "low"}},
        {"query": "low"},
        {"query": [{"match": {"text": {"query": ["low"]}}}]},
        {"query": {"match_all": {}}, "ext": []},
        {"query": {"match_all": {}}, "ext": {"rerank": "x"}},
        {"query": {"match_all": {}}, "ext": {"rerank": {"query_context": 3}}},
    ],
)
def test_a_malformed_body_is_left_to_opensearch(body):
    client = client_for(["a"])
    assert client.search(index="i", body=body, rerank=True)["rerank"]["applied"] is False
    assert asked(client)["body"] == body


def test_hits_below_min_score_are_counted():
    client = client_for(["a", "bbb", "cc"], FunctionScorer(lambda _query, text: len(text) - 2.0))
    response = client.search("low", index="i", rerank={"min_score": 0.5})
    assert ids(response) == ["d1", "d2"]
    assert response["rerank"]["below_min_score"] == 1
    assert "below_min_score" not in client.search("low", index="i", rerank=True)["rerank"]
