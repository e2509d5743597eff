"""Searches without one text to rerank by, those that are still being typed, and hits below a threshold."""

import pytest
from opensearchpy import RequestError

from osrerank.errors import ConfigError
from osrerank.testing import FunctionScorer
from tests.articles import filled
from tests.rankings import asked, client_for, ids


def match(text):
    return {"match": {"text": text}}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"query": {"match_all": {}}}, "the query has no text to rerank by"),
        ({"query": {"term": {"tag": "blood"}}}, "the query has no text to rerank by"),
        ({}, "the query has no text to rerank by"),
        ({"query": {"query_string": {"query": "*"}}}, "the query has no text to rerank by"),
        ({"query": {"bool": {"must": [*map(match, ("low", "high"))]}}}, "the query searches for several texts"),
    ],
)
def test_a_query_without_one_text_keeps_the_first_pass(body, reason):
    client = client_for(["a", "bbb"])
    response = client.search(index="i", body=body, size=2, rerank={"depth": 50})
    assert (ids(response), response["rerank"]["applied"]) == (["d0", "d1"], False)
    reason_shown = response["rerank"]["reason"]
    for way in (reason, "rerank={'query': ...}", "ext.rerank.query_context.query_text", "single match, multi_match"):
        assert way in reason_shown
    assert asked(client)["body"] == body
    assert int(asked(client)["params"]["size"]) == 2
    with pytest.raises(ConfigError, match=reason):
        client.search(index="i", body=body, rerank={"on_failure": "raise"})


def test_a_text_without_a_letter_or_digit_keeps_the_first_pass():
    client = client_for(["a 💊", "bbb 💊"])
    response = client.search("💊", index="i", rerank=True)
    assert (ids(response), response["rerank"]["reason_code"]) == (["d0", "d1"], "no_query")
    assert client.search("💊", index="i", rerank={"query": "pill"})["rerank"]["applied"] is True


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


@pytest.mark.parametrize(
    "part",
    [
        {"ext": "x"},
        {"collapse": "text"},
        {"fields": 3},
        {"stored_fields": 3},
        {"runtime_mappings": {"a": 3}},
        {"retriever": "standard"},
        {"search_after": []},
        {"search_after": 0},
    ],
)
def test_a_malformed_part_of_a_search_gets_the_error_of_the_engine(part, tmp_path):
    body = {"query": match("low"), **part}
    with filled(f"embedded:{tmp_path}", "i", {"0": {"text": "low"}}, scorer=FunctionScorer(len)) as client:
        errors = []
        for options in ({}, {"rerank": True}):
            with pytest.raises(RequestError) as error:
                client.search(index="i", body=body, **options)
            errors.append(error.value.info)
    assert errors[0] == errors[1]


@pytest.mark.parametrize("section", [{"match": {"section": "net"}}, {"match": {"section": {"query": "net"}}}])
def test_a_match_of_a_keyword_does_not_hide_the_text_of_the_query(section, tmp_path):
    mapping = {"properties": {"headline": {"type": "text"}, "section": {"type": "keyword"}}}
    documents = {"0": {"headline": "network monitor", "section": "net"}}
    read = []
    scorer = FunctionScorer(lambda query, _text: read.append(query) or 1.0)
    query = {"bool": {"should": [{"match": {"headline": "bandwidth monitor"}}, section]}}
    with filled(f"embedded:{tmp_path}", "i", documents, {"mappings": mapping}, scorer=scorer) as client:
        assert client.search(index="i", body={"query": query}, rerank=True)["rerank"]["applied"] is True
    assert read == ["bandwidth monitor"]


def test_hits_below_min_score_are_counted():
    client = client_for(["a", "bbb", "cc"], FunctionScorer(lambda _query, text: len(text) - 2.0))
    response = client.search("low", index="i", rerank={"min_score": 0.5})
    assert ids(response) == ["d1", "d2"]
    assert response["rerank"]["below_min_score"] == 1
    assert "below_min_score" not in client.search("low", index="i", rerank=True)["rerank"]


MATCH = {"match": {"text": "low blo"}}
BOOL_PREFIX = {"multi_match": {"query": "low blo", "type": "bool_prefix", "fields": ["t", "t._2gram"]}}
TYPED = [
    ({"query": {"match_bool_prefix": {"text": "low blo"}}}, "match_bool_prefix"),
    ({"query": {"match_bool_prefix": {"text": {"query": "low blo", "boost": 2}}}}, "match_bool_prefix"),
    ({"query": {"match_phrase_prefix": {"text": {"query": "low blo"}}}}, "match_phrase_prefix"),
    ({"query": BOOL_PREFIX}, "multi_match of type bool_prefix"),
    ({"query": {"multi_match": {"query": "low blo", "type": "phrase_prefix"}}}, "multi_match of type phrase_prefix"),
    ({"query": {"query_string": {"query": "low blo", "type": "bool_prefix"}}}, "query_string of type bool_prefix"),
    ({"query": {"match": {"title._3gram": "low blo"}}}, "the field title._3gram"),
    ({"query": {"multi_match": {"query": "lo", "fields": ["t", "t._index_prefix^3"]}}}, "the field t._index_prefix^3"),
    ({"query": {"bool": {"must": [MATCH], "should": [{"match_phrase_prefix": {"t": "low blo"}}]}}}, "match_phrase_pre"),
    ({"query": {"dis_max": {"queries": [MATCH, BOOL_PREFIX]}}}, "multi_match of type bool_prefix"),
    ({"query": MATCH, "suggest": {"s": {"prefix": "lo", "completion": {"field": "f"}}}}, "a completion suggester"),
]
WHOLE = [
    {"query": MATCH},
    {"query": {"multi_match": {"query": "low blood", "type": "phrase", "fields": ["text", "grams._2gramm"]}}},
    {"query": {"bool": {"must": [MATCH], "filter": [{"match_phrase_prefix": {"kind": "art"}}]}}},
    {"query": MATCH, "suggest": {"text": "blod", "s": {"term": {"field": "text"}}}},
    {"query": MATCH, "suggest": []},
]


def search(body, **options):
    client = client_for(["a", "bbb"])
    return client.search(index="i", body=body, rerank=options or True)["rerank"], client.transport.requests[-1]["body"]


@pytest.mark.parametrize(("body", "what"), TYPED)
def test_a_query_that_is_still_being_typed_is_not_reranked(body, what):
    marks, sent = search(body, on_failure="raise")  # nothing has failed
    assert marks["applied"] is False
    assert marks["reason"].startswith(f"the query is still being typed ({what}")
    assert "rerank={'query': ...}" in marks["reason"]
    assert sent == body


@pytest.mark.parametrize(("body", "what"), TYPED)
def test_an_unfinished_query_with_a_named_text_is_reranked(body, what):
    assert search(body, query="low blood")[0]["applied"] is True, what
    named_body = {**body, "ext": {"rerank": {"query_context": {"query_text": "low blood"}}}}
    assert search(named_body)[0]["applied"] is True


@pytest.mark.parametrize("body", WHOLE)
def test_queries_with_one_text_are_reranked(body):
    assert search(body)[0]["applied"] is True
