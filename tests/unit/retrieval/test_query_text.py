"""The first pass's query from a text, and the text from a query."""

import pytest

from osrerank.errors import ConfigError
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.query_text import build_query, find_query_text


def test_one_field_is_a_match_several_a_multi_match():
    assert build_query("x", SearchFields(("text",))) == {"match": {"text": {"query": "x"}}}
    assert build_query("x", SearchFields(("title^2",)))["multi_match"]["fields"] == ["title^2"]
    assert build_query("x", SearchFields(("title", "text")))["multi_match"]["type"] == "best_fields"


@pytest.mark.parametrize(
    "query",
    [
        {"match": {"text": "low blood"}},
        {"match": {"text": {"query": "low blood", "operator": "and"}}},
        {"match_phrase": {"text": "low blood"}},
        {"multi_match": {"query": "low blood", "fields": ["title", "text"]}},
        {"query_string": {"query": "low blood"}},
        {"simple_query_string": {"query": "low blood"}},
        {"neural": {"embedding": {"query_text": "low blood", "model_id": "m", "k": 5}}},
        {"bool": {"must": {"match": {"text": "low blood"}}, "filter": [{"match": {"kind": "other"}}]}},
        {"bool": {"should": [{"match": {"title": "low blood"}}, {"match": {"text": "low blood"}}]}},
        {"bool": {"must": [{"match": {"text": "low blood"}}], "must_not": {"match": {"text": "other"}}}},
        {"function_score": {"query": {"match": {"text": "low blood"}}, "boost": 5}},
        {"hybrid": {"queries": [{"match": {"t": "low blood"}}, {"neural": {"v": {"query_text": "low blood"}}}]}},
        {"dis_max": {"queries": [{"match": {"t": "low blood"}}, {"term": {"t": "x"}}]}},
    ],
)
def test_the_text_that_scoring_clauses_agree_on(query):
    assert find_query_text({"query": query}) == "low blood"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": {"match_all": {}}},
        {"query": {"term": {"tag": "x"}}},
        {"query": {"bool": {"filter": {"match": {"t": "x"}}}}},
        {"query": {"bool": {"should": [{"match": {"t": "x"}}, {"match": {"t": "y"}}]}}},
        {"query": "nonsense"},
        {"query": {"match": {"t": 5}}},
    ],
)
def test_no_text_or_several_name_the_three_ways(body):
    with pytest.raises(ConfigError, match=r"ext\.rerank\.query_context\.query_text.*match, multi_match"):
        find_query_text(body)


def test_ext_wins_over_the_query():
    body = {"query": {"match": {"t": "a"}}, "ext": {"rerank": {"query_context": {"query_text": "b"}}}}
    assert find_query_text(body) == "b"


def test_ext_path():
    body = {"query": {"match": {"t": {"query": "a"}}}}
    context = {"query_text_path": "query.match.t.query"}
    assert find_query_text({**body, "ext": {"rerank": {"query_context": context}}}) == "a"
    with pytest.raises(ConfigError, match="leads to no text"):
        find_query_text({**body, "ext": {"rerank": {"query_context": {"query_text_path": "query.nothing"}}}})
