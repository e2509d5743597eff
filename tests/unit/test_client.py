"""The client: forms of a search, options, responses, and failures of a model."""

import copy
import sys

import numpy as np
import opensearchpy
import pytest
from prometheus_client import REGISTRY

from osrerank import Rerank, connect
from osrerank.errors import ConfigError, InferenceError, MissingDependencyError, ModelLoadError
from osrerank.testing import FunctionScorer, ManualClock
from tests.rankings import asked, client_for, ids, response_of, unmarked
from tests.servers import ROOT

TINY = ROOT / "tests" / "data" / "tiny-bert-one-label"


def test_the_argument_rerank_changes_the_order():
    client = client_for(response_of(["a", "bbb", "cc"]))
    response = client.search("low blood", index="i", rerank=True)
    assert ids(response) == ["d1", "d2", "d0"]
    assert response["rerank"]["applied"] is True
    assert asked(client)["url"] == "/i/_search"
    assert asked(client)["body"]["size"] == 100
    assert "search_pipeline" not in asked(client)["params"]
    assert len(client.transport.requests) == 1


def test_without_rerank_searches_are_opensearch_pys_own():
    answer = response_of(["a", "bbb"])
    client = client_for(answer)
    assert client.search(index="i", body={"query": {"match_all": {}}}, size=3, from_=2) is answer
    request = asked(client)
    assert request["body"] == {"query": {"match_all": {}}}
    assert request["params"] == {"size": "3", "from": "2"} or request["params"] == {"size": b"3", "from": b"2"}


def test_text_without_rerank_is_a_plain_bm25_search():
    client = client_for(response_of(["a"]))
    assert "rerank" not in client.search("low", index="i")
    assert asked(client)["body"]["query"]["multi_match"]["query"] == "low"


def test_pipeline_none_in_the_settings_file_gives_bm25s_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "osrerank.toml").write_text('[rerank]\npipeline = "none"\n')
    client = client_for(response_of(["a", "bbb", "cc"]))
    assert ids(client.search("low", index="i", rerank=True)) == ["d0", "d1", "d2"]
    client.search("low", index="i", rerank=False)
    assert client.transport.requests[0]["body"] == client.transport.requests[1]["body"]


def test_a_query_may_be_a_clause_or_a_body():
    client = client_for(response_of(["a", "bbb"]))
    for arguments in (
        {"query": {"match": {"text": "low"}}},
        {"query": opensearchpy.Q("match", text="low")},
        {"body": {"query": {"match": {"text": "low"}}}},
        {"body": '{"query": {"match": {"text": "low"}}}'},
        {"query": {"term": {"tag": "x"}}, "rerank": {"query": "low"}},
    ):
        assert ids(client.search(**{"index": "i", "rerank": True, **arguments})) == ["d1", "d0"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"body": {"query": {"bool": {"must": ({"match": {"text": "low"}},), "should": ({"term": {"tag": "x"}},)}}}},
        {"query": {"bool": {"must": ({"match": {"text": "low"}},)}}},
        {"query": "low", "body": {"sort": ("_score", {"id": "asc"})}},
        {"query": "low", "sort": ("_score", "id:asc")},
        {"query": "low", "body": {"from": np.int64(0), "size": np.int32(2)}},
        {"query": "low", "from_": np.int64(0), "size": np.int64(2)},
    ],
)
def test_tuples_and_numpys_numbers_count_as_those_of_json(arguments):
    client = client_for(response_of(["a", "bbb", "cc"]))
    response = client.search(**{"index": "i", "rerank": True, **arguments})
    assert response["rerank"]["reason"] is None
    assert ids(response)[0] == "d1"


def test_options_may_be_a_rerank_object():
    options = {"depth": 2, "min_score": 0.8, "fields": ["text"]}
    client = client_for(response_of(["a", "bbb", "cc"]))
    by_dict, by_object = (
        client.search("low", index="i", rerank=rerank_options) for rerank_options in (options, Rerank(**options))
    )
    assert by_object["hits"] == by_dict["hits"]
    assert asked(client) == client.transport.requests[0]
    assert ids(by_object) == ["d1"]


def test_a_query_given_twice_is_an_error():
    with pytest.raises(ValueError, match="leave one out"):
        client_for({}).search("low", body={"query": {"match_all": {}}}, rerank=True)


@pytest.mark.parametrize("query", [7, b"low", [{"match": {"text": "low"}}]])
def test_a_query_that_is_neither_text_nor_clause_is_refused(query):
    for rerank in (True, False):
        with pytest.raises(ConfigError, match="it must be a text or a query-DSL clause"):
            client_for({}).search(query, index="i", rerank=rerank)


def test_a_query_in_the_url_is_reranked_by_its_text():
    read = []
    client = client_for(["a", "bbb"], FunctionScorer(lambda query, text: read.append(query) or len(text)))
    body = {"query": {"match": {"text": "high"}}}  # q replaces it
    response = client.search(index="i", body=body, q="low", df="text", default_operator="AND", rerank=True)
    assert (ids(response), set(read)) == (["d1", "d0"], {"low"})
    clause = {"query": "low", "default_field": "text", "default_operator": "AND"}
    assert asked(client)["body"]["query"] == {"query_string": clause}
    assert not {"q", "df", "default_operator"} & asked(client)["params"].keys()


@pytest.mark.parametrize("body", [b"{", "[1]", 7])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(ConfigError, match="body"):
        client_for({}).search(index="i", body=body, rerank=True)


def test_options_of_the_client_are_defaults_of_its_searches():
    client = client_for(response_of(["a"]), rerank={"depth": 7, "query_fields": "body", "fields": "text"})
    client.search("low", index="i", rerank=True)
    assert asked(client)["body"]["size"] == 10
    assert asked(client)["body"]["query"] == {"match": {"body": {"query": "low"}}}
    client.search("low", index="i", size=3, rerank={"depth": 5})
    assert asked(client)["body"]["size"] == 5


@pytest.mark.parametrize(
    ("arguments", "answer", "code", "reason"),
    [
        ({"size": 0}, response_of(["a"]), "request", "size is 0"),
        ({"scroll": "1m"}, response_of(["a"]), "paging", "scroll"),
        ({"body": {"sort": ["date"]}}, response_of(["a"]), "sorted", "sorted by something other than score"),
        ({"from_": 9_999}, response_of(["a"]), "request", "result window"),
        ({}, response_of([]), "no_hits", "there are no hits"),
        ({"rerank": {"query": "  "}}, response_of(["a"]), "no_query", "query text is empty"),
        ({"rerank": {"fields": ["body"]}}, response_of(["a"]), "no_text", "the hits have text"),
    ],
)
def test_a_search_that_is_not_reranked_has_the_reason_in_its_response(arguments, answer, code, reason):
    response = client_for(copy.deepcopy(answer)).search("low", **{"index": "i", "rerank": True, **arguments})
    assert response["rerank"]["applied"] is False
    assert response["rerank"]["reason_code"] == code
    assert reason in response["rerank"]["reason"]
    assert unmarked(response) == answer["hits"]


def test_a_failed_scorer_keeps_the_first_pass_marked_timed_logged_and_counted(caplog):
    clock = ManualClock()

    def slow(_query, _text):
        clock.sleep(0.05)
        raise InferenceError("broken on purpose")

    client = client_for(response_of(["a", "bbb"]), scorer=FunctionScorer(slow), clock=clock)
    before = REGISTRY.get_sample_value("osrerank_searches_total", {"applied": "false"}) or 0
    with caplog.at_level("INFO", logger="osrerank"):
        response = client.search("low blood", index="i", rerank=True)
    assert ids(response) == ["d0", "d1"]
    assert [hit["_score"] for hit in response["hits"]["hits"]] == [2.0, 1.0]
    assert response["rerank"]["applied"] is False
    assert response["took"] >= 3 + 50
    assert "on purpose" in response["rerank"]["reason"]
    assert "a search was not fully reranked: scoring" in caplog.text
    assert "low blood" not in caplog.text
    assert REGISTRY.get_sample_value("osrerank_searches_total", {"applied": "false"}) == before + 1


def test_a_search_without_hits_is_not_counted_as_degraded():
    def count(applied: str) -> float:
        return REGISTRY.get_sample_value("osrerank_searches_total", {"applied": applied}) or 0

    before = {applied: count(applied) for applied in ("false", "no_hits")}
    client_for(response_of([])).search("low", index="i", rerank=True)
    assert {applied: count(applied) - before[applied] for applied in before} == {"false": 0, "no_hits": 1}


@pytest.mark.parametrize("limit", [{"min_score": 0.9}, {"min_probability": 0.9}, {"cutoff": {"precision": 0.9}}])
def test_a_failed_scorer_removes_no_hit(limit):
    client = client_for(response_of(["a", "bbb"]), scorer=FunctionScorer(broken=True))
    assert ids(client.search("low", index="i", rerank=limit)) == ["d0", "d1"]


def test_a_failed_scorer_raises_on_request():
    client = client_for(response_of(["a"]), scorer=FunctionScorer(broken=True))
    with pytest.raises(InferenceError):
        client.search("low", index="i", rerank={"on_failure": "raise"})


@pytest.mark.parametrize(
    ("model", "error", "reason"),
    [(TINY, MissingDependencyError, "osrerank[torch]"), (TINY.parent / "nothing", ModelLoadError, "nothing")],
)
def test_a_missing_backend_or_model_is_named_in_the_response_or_raised(monkeypatch, model, error, reason):
    monkeypatch.setitem(sys.modules, "torch", None)
    client = client_for(response_of(["a", "b"]), scorer=None, backend="torch", model=str(model))
    response = client.search("low", index="i", rerank=True)
    assert response["rerank"]["applied"] is False
    assert reason in response["rerank"]["reason"]
    with pytest.raises(error):
        client.search("low", index="i", rerank={"on_failure": "raise"})


@pytest.mark.parametrize("text", ["a \ud800 b", "a\udfff", "low \x00 blood"])
def test_a_text_with_half_a_surrogate_pair_is_reranked(text):
    client = client_for(response_of([text, "low blood"]), scorer=None)
    response = client.search(f"low {text}", index="i", rerank=True)
    assert response["rerank"]["applied"] is True
    assert sorted(ids(response)) == ["d0", "d1"]


def test_scores_of_a_custom_scorer_are_cached(redis_url, monkeypatch):
    calls = []

    def counted(_query, text):
        calls.append(text)
        return float(len(text))

    answer = response_of(["a", "bbb"])
    client = client_for(answer, scorer=FunctionScorer(counted), redis_url=redis_url)
    first, second = (client.search("low", index="i", rerank=True) for _ in range(2))
    assert ids(first) == ids(second) == ["d1", "d0"]
    assert len(calls) == 2
    assert second["rerank"]["stages"][0]["cached"] == 2
    client.close()
    monkeypatch.setenv("OSRERANK_CACHE_MB", "0")
    without = client_for(answer, scorer=FunctionScorer(counted), redis_url=redis_url)
    without.search("low", index="i", rerank=True)
    assert len(calls) == 4
    without.close()


def test_the_linear_blend_needs_a_weight():
    client = client_for(response_of(["a", "bbb"]))
    with pytest.raises(ConfigError, match="blend_weight"):
        client.search("low", index="i", rerank={"blend": "linear"})
    response = client.search("low", index="i", rerank={"blend": "linear", "blend_weight": 50})
    assert ids(response) == ["d0", "d1"]
    assert [stage["name"] for stage in response["rerank"]["stages"]] == ["mono", "blend"]


def test_a_multi_search_response_without_responses_is_an_error():
    body = [{"index": "i"}, {"query": {"match": {"text": "low"}}}]
    assert client_for({"took": 1}).msearch(body=body, rerank=True, filter_path="took") == {"took": 1}
    answer = {"responses": [{"hits": {"hits": [{"_id": "1"}]}}]}
    marked = client_for(answer).msearch(body=body, rerank=True, filter_path="responses.hits.hits._id")["responses"][0]
    assert "filter_path" in marked["rerank"]["reason"]
    with pytest.raises(ConfigError, match="not JSON"):
        client_for({}).msearch(body="{\n{}", rerank=True)
    with pytest.raises(ConfigError, match="a header and a body"):
        client_for({}).msearch(body=[{}], rerank=True)
    with pytest.raises(ConfigError, match="must be an object"):
        client_for({}).msearch(body=[1, {}], rerank=True)
    for empty in ([], "\n"):  # refused as without reranking
        with pytest.raises(ValueError, match="Empty value"):
            client_for({}).msearch(body=empty, rerank=True)


def test_a_multi_search_names_the_reason_of_a_search_without_a_text():
    body = [{}, {"query": {"match_all": {}}}, None, {"query": {"match": {"text": "low"}}}]
    answer = {"responses": [response_of(["a", "bbb"]), response_of(["a", "bbb"])]}
    client = client_for(answer)
    first, second = client.msearch(body=body, index="i", rerank=True)["responses"]
    assert "no text to rerank by" in first["rerank"]["reason"]
    assert ids(first) == ["d0", "d1"]
    assert ids(second) == ["d1", "d0"]


def test_an_error_that_the_caller_ignores_is_returned_as_it_is():
    error = {"error": {"type": "index_not_found_exception", "reason": "no such index [none]"}, "status": 404}
    client = client_for(error)
    assert client.search("blood", index="none", ignore=404, rerank=True) == error


def test_a_response_with_a_repeated_hit_is_not_reranked():
    answer = response_of(["a", "bbb"])
    answer["hits"]["hits"].append(dict(answer["hits"]["hits"][0]))
    response = client_for(answer).search("low", index="i", rerank=True)
    assert "appears twice" in response["rerank"]["reason"]


def test_a_hybrid_query_keeps_the_search_pipeline_of_its_index():
    client = client_for(response_of(["a"]))
    hybrid = {"hybrid": {"queries": [{"match": {"text": "low"}}, {"neural": {"v": {"query_text": "low"}}}]}}
    client.search(hybrid, index="i", rerank=True)
    assert "search_pipeline" not in asked(client)["params"]


def test_a_score_that_is_no_number_keeps_the_first_pass():
    answer = response_of(["a"])
    answer["hits"]["hits"][0]["_score"] = "high"
    response = client_for(answer).search("low", index="i", rerank=True)
    assert [hit["_score"] for hit in response["hits"]["hits"]] == ["high"]
    assert response["rerank"]["reason_code"] == "response"
    assert "$.hits.hits[0]._score is 'high'" in response["rerank"]["reason"]


def test_credentials_are_not_in_the_clients_representation():
    client = connect("http://bob:s3cret@localhost:1")
    assert repr(client) == "<Client of localhost:1>"


def test_rank_orders_texts_of_the_caller():
    client = client_for({})
    ranking = client.rerank("low", ["a", {"id": "x", "text": "bbb", "title": "t", "score": 2}])
    assert [(candidate.doc_id, candidate.text) for candidate in ranking.candidates] == [("x", "t bbb"), ("0", "a")]
    with pytest.raises(ConfigError, match="document 1 has no text"):
        client.rerank("low", ["a", {"id": "x"}])
    assert client.rerank("low", []).reports[0].reason == "no candidates"
    for query, kind in ((None, "None"), (7, "of the type int")):
        with pytest.raises(ConfigError, match=f"the query is {kind}; pass a text"):
            client.rerank(query, ["a"])
        with pytest.raises(ConfigError, match=f"the query is {kind}; pass a text"):
            client.rerank_response(response_of(["a"]), query)
