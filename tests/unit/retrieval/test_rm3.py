"""RM3's weights by hand, and what it sends."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank import connect
from osrerank.errors import ConfigError
from osrerank.options.rm3 import Rm3
from osrerank.retrieval.rm3 import FeedbackDocument, expand_query, expand_terms
from osrerank.search.plan import NOT_EXPANDED
from osrerank.testing import FunctionScorer
from tests.rankings import client_for, response_of, unmarked


def test_rm3_weights_by_hand():
    feedback = [
        FeedbackDocument(3.0, {"apple": 2, "pear": 1, "fig": 1}),  # fig falls out: two terms of each document
        FeedbackDocument(1.0, {"plum": 3, "apple": 1}),
    ]
    # r: apple 2/3 * 3 + 1/4 * 1 = 2.25, pear or fig 1/3 * 3 = 1 (fig comes first), plum 3/4 = .75; two are kept
    weights = expand_terms(["apple", "juice", "juice", "apple"], feedback, Rm3(terms=2, weight=0.6))
    apple, fig = 2.25 / 3.25, 1 / 3.25
    assert weights == pytest.approx({"apple": 0.3 + 0.4 * apple, "juice": 0.3, "fig": 0.4 * fig})
    assert list(weights) == ["apple", "juice", "fig"]


def test_rm3_weights_at_extreme_shares():
    feedback = [FeedbackDocument(2.0, {"pear": 1})]
    assert expand_terms(["apple"], feedback, Rm3(weight=1.0)) == {"apple": 1.0}
    assert expand_terms(["apple"], feedback, Rm3(weight=0.0)) == {"pear": 1.0}
    assert expand_terms(["apple"], [FeedbackDocument(2.0, {})], Rm3()) == {"apple": 1.0}
    assert expand_terms([], feedback, Rm3()) == {"pear": 0.5}


words = st.text(st.sampled_from("abc"), min_size=1, max_size=3)


@given(
    st.lists(words, min_size=1, max_size=6),
    st.lists(st.builds(FeedbackDocument, st.floats(0.1, 30), st.dictionaries(words, st.integers(1, 9))), max_size=5),
    st.builds(Rm3, terms=st.integers(1, 4), weight=st.floats(0.05, 0.95)),
)
def test_rm3_weights_sum_to_1_and_keep_the_query(query, feedback, rm3):
    weights = expand_terms(query, feedback, rm3)
    assert sum(weights.values()) == pytest.approx(1)
    assert set(query) <= set(weights)
    assert len(weights) <= rm3.terms + len(set(query))


VECTOR = {
    "field_statistics": {"doc_count": 100, "sum_doc_freq": 1000, "sum_ttf": 2000},
    "terms": {
        "common": {"term_freq": 9, "doc_freq": 11},
        "rare": {"term_freq": 2, "doc_freq": 10},
        "x": {"term_freq": 5, "doc_freq": 1},
        "l" * 21: {"term_freq": 5, "doc_freq": 1},
        "naïve": {"term_freq": 5, "doc_freq": 1},
        "42": {"term_freq": 1, "doc_freq": 1},
    },
}


def answers_to(asking, *answers):
    asks, answer = [], None
    replies = iter(answers)
    while True:
        try:
            asks.append(asking.send(answer))
        except StopIteration as end:
            return asks, end.value
        answer = next(replies)


def test_rm3_requests_term_vectors_and_uses_allowed_terms():
    response = {"hits": {"hits": [{"_index": "a/1", "_id": "7", "_score": 2.0, "_routing": "r"}]}}
    vectors = {"docs": [{"_id": "7", "term_vectors": {"body": VECTOR}}]}
    tokens = {"tokens": [{"token": "salt"}, {"token": "salt"}]}
    rm3 = Rm3(documents=3, field="body")
    asking = expand_query("salts of salt", ["a/1", "b*"], rm3, {"routing": "r", "size": 3}, "body")
    (search, term_vectors, analyze), query = answers_to(asking, response, vectors, tokens)
    assert search.path == "/a%2F1,b*/_search"
    assert search.body == {"query": {"match": {"body": {"query": "salts of salt"}}}, "size": 3, "_source": False}
    assert search.params == {"routing": "r"}
    assert term_vectors.body["docs"][0]["routing"] == "r"
    assert (analyze.path, analyze.body) == ("/a%2F1/_analyze", {"field": "body", "text": "salts of salt"})
    weights = {clause["term"]["body"]["value"]: clause["term"]["body"]["boost"] for clause in query["bool"]["should"]}
    assert weights == pytest.approx({"salt": 0.5, "rare": 1 / 3, "42": 1 / 6})


def test_feedback_comes_through_the_search_pipeline_of_the_search():
    nothing = {"hits": {"hits": []}}
    (search,), _ = answers_to(expand_query("salt", "i", Rm3(), {}, "text", "hiding"), nothing)
    assert search.params == {"search_pipeline": "hiding"}
    definition = {"request_processors": [{"filter_query": {}}]}
    (search,), _ = answers_to(expand_query("salt", "i", Rm3(), {}, "text", definition), nothing)
    assert (search.body["search_pipeline"], search.params) == (definition, {})


def test_rm3_without_hits_keeps_the_query():
    (search,), query = answers_to(expand_query("salt", None, Rm3(), {}, "text"), {"hits": {"hits": []}})
    assert search.path == "/_search"
    assert query is None


def test_rm3_with_a_missing_field_keeps_the_query_and_names_the_field(tmp_path):
    client = connect(f"embedded:{tmp_path}", scorer=FunctionScorer())
    client.bulk(body=[line for i in range(9) for line in ({"index": {"_index": "n", "_id": str(i)}}, {"text": "salt"})])
    client.indices.refresh(index="n")
    response = client.search("salt", index="n", rerank={"rm3": {"field": "txet"}})
    assert response["hits"]["total"]["value"] == 9
    assert response["rerank"]["warnings"] == [NOT_EXPANDED.format("txet")]


def test_rm3_refuses_a_query_in_clauses():
    client = client_for(["a"])
    for arguments in ({"query": {"match_all": {}}}, {"body": {"query": {"match": {"text": "low"}}}}):
        with pytest.raises(ConfigError, match="given as text"):
            client.search(**arguments, index="i", rerank={"rm3": True})
    with pytest.raises(ConfigError, match="multi-search"):
        client.msearch(body=json.dumps({}) + '\n{"query": {"match": {"text": "low"}}}\n', rerank={"rm3": True})


def test_rm3_with_pipeline_none_returns_the_first_pass():
    answer = response_of(["a", "bbb"])
    client = client_for(answer)
    response = client.search("low", index="i", from_=4, size=3, rerank={"pipeline": "none", "query_fields": "text"})
    assert unmarked(response) == answer["hits"]
    assert [hit["_rerank"] for hit in response["hits"]["hits"]] == [
        {"first_pass": {"score": 2.0, "rank": 5}},
        {"first_pass": {"score": 1.0, "rank": 6}},
    ]
    assert (response["rerank"]["applied"], response["rerank"]["reason_code"]) == (False, "not_asked")
    assert client.transport.requests[-1]["body"] == {"query": {"match": {"text": {"query": "low"}}}}
    marked = client.rerank_response(answer, "low", options={"pipeline": "none"})
    assert marked["rerank"]["reason"] == "the pipeline is none"
