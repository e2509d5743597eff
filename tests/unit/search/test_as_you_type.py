"""As-you-type searches are left alone, unless their text is named."""

import pytest

from tests.rankings import client_for

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
def test_a_query_that_is_still_being_typed_is_left_alone(body, what):
    marks, sent = search(body, on_failure="raise")  # nothing has failed
    assert marks["applied"] is False
    assert marks["reason"].startswith(f"the query is still being typed ({what}")
    assert "rerank={'query': ...}" in marks["reason"]
    assert sent == body


@pytest.mark.parametrize(("body", "what"), TYPED)
def test_a_named_text_reranks_it(body, what):
    assert search(body, query="low blood")[0]["applied"] is True, what
    named = {**body, "ext": {"rerank": {"query_context": {"query_text": "low blood"}}}}
    assert search(named)[0]["applied"] is True


@pytest.mark.parametrize("body", WHOLE)
def test_other_queries_are_reranked(body):
    assert search(body)[0]["applied"] is True
