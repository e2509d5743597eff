"""Requests and answers as the servers' public documentation shows them, and answers that cannot be used.

`backends.http.dialects` has where they are documented. The texts are ours; names, nesting and kinds of values theirs.
"""

import itertools
import json
import math

import numpy as np
import pytest

from osrerank.errors import EndpointError
from osrerank.scoring.backends.http.dialects import DIALECTS
from osrerank.scoring.backends.http.responses import read_scores
from tests.rerank_server import Reply, answering

QUERY, TEXTS = "q", ["first", "second", "third"]
TUPLES = [(0,), (1,), (2,)]
RESULTS = [{"index": index, "relevance_score": score} for index, score in ((2, 0.9), (0, 0.5), (1, 0.1))]
LOGITS = [0.0, math.log(1 / 9), math.log(9)]
NAMED = {"query": QUERY, "documents": TEXTS, "model": "m"}
SCORES = [{"index": index, "object": "score", "score": score} for index, score in enumerate((0.5, 0.1, 0.9))]
COHERE_1 = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
COHERE_2 = {"api_version": {"version": "2", "is_experimental": False}}
SCORED = {"id": "score-request-id", "object": "list", "created": 693570, "model": "m", "data": SCORES, "usage": {}}

CASES = {
    "cohere-v1": (
        "/v1/rerank",
        {**NAMED, "top_n": 3, "return_documents": False},
        {"id": "8bc7", "results": RESULTS, "meta": COHERE_1},
    ),
    "cohere-v2": ("/v2/rerank", {**NAMED, "top_n": 3}, {"id": "0773", "results": RESULTS, "meta": COHERE_2}),
    "jina": (
        "/v1/rerank",
        {**NAMED, "top_n": 3, "return_documents": False},
        {"model": "m", "usage": {"total_tokens": 815}, "results": RESULTS},
    ),
    "voyage": (
        "/v1/rerank",
        {**NAMED, "truncation": True},
        {"object": "list", "data": RESULTS, "model": "m", "usage": {"total_tokens": 26}},
    ),
    "tei": (
        "/rerank",
        {"query": QUERY, "texts": TEXTS, "truncate": True, "raw_scores": True},
        [{"index": entry["index"], "score": LOGITS[entry["index"]]} for entry in RESULTS],
    ),
    "vllm": (
        "/rerank",
        {**NAMED, "top_n": 3, "truncate_prompt_tokens": -1},
        {
            "id": "rerank-fae5",
            "model": "m",
            "results": [{**entry, "document": {"text": "its text"}} for entry in RESULTS],
        },
    ),
    "vllm-score": ("/score", {"text_1": QUERY, "text_2": TEXTS, "model": "m", "truncate_prompt_tokens": -1}, SCORED),
}


@pytest.mark.parametrize("dialect", CASES)
def test_requests_and_answers_are_those_of_the_servers_documentation(scorer_of, dialect):
    path, request_body, answer = CASES[dialect]
    with answering(lambda _received: Reply(answer)) as server:
        scorer = scorer_of(server.url, dialect, model="m", rerank_key="k3y")
        scores = scorer.score(QUERY, TEXTS, TUPLES)
    assert scores.values.tolist() == pytest.approx(LOGITS, abs=1e-6)
    assert (scores.failures, scores.reached, scores.inferences) == ({}, 3, 3)
    assert scorer.probabilities(scores.values).tolist() == pytest.approx([0.5, 0.1, 0.9])
    received = server.received[0]
    assert (received.method, received.path, received.body) == ("POST", path, request_body)
    assert received.headers["authorization"] == "Bearer k3y"


def test_the_model_name_is_sent_only_to_servers_that_need_a_name(scorer_of):
    for dialect in ("vllm", "vllm-score", "tei", "osrerank"):
        with answering(lambda _received, dialect=dialect: Reply(CASES.get(dialect, CASES["tei"])[2])) as server:
            scorer = scorer_of(server.url, dialect)
            scorer.score(QUERY, TEXTS, TUPLES)
        assert "model" not in server.received[0].body
        assert "authorization" not in server.received[0].headers
        assert scorer.model == f"the model of 127.0.0.1:{server.server_port}"


def test_the_setting_scale_decides_between_logits_and_probabilities(scorer_of):
    answer = {"results": [{"index": index, "relevance_score": score} for index, score in enumerate((-3.0, 0.5, 7.0))]}
    with answering(lambda _received: Reply(answer)) as server:
        scores = scorer_of(server.url, "vllm", http={"scores": "logit"}).score(QUERY, TEXTS, TUPLES)
    assert scores.values.tolist() == [-3.0, 0.5, 7.0]
    assert server.received[0].body["use_activation"] is False
    answer = [{"index": index, "score": score} for index, score in enumerate((0.5, 0.1, 0.9))]
    with answering(lambda _received: Reply(answer)) as server:
        scores = scorer_of(server.url, "tei", http={"scores": "probability"}).score(QUERY, TEXTS, TUPLES)
    assert scores.values.tolist() == pytest.approx(LOGITS, abs=1e-6)
    assert server.received[0].body["raw_scores"] is False


def tei(*scores):
    return [{"index": index, "score": score} for index, score in enumerate(scores)]


def logits_of(content, count=3, *, dialect="tei", scale="logit", **headers):
    return read_scores(DIALECTS[dialect], scale, content, count, headers)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"error": "no"}, "has no list: the server does not use the dialect 'tei'; set dialect in "),
        ("scores", "has no list"),
        ([0.5, 0.1], "has an entry without 'index' or 'score'"),
        ([{"index": "0", "score": 1}], "has an entry without 'index'"),
        ([{"index": True, "score": 1}], "has an entry without 'index'"),
        ([{"index": 0}], "without 'index' or 'score'"),
        ([{"index": 3, "score": 1}], "scored document 3, but the request had only documents 0 to 2"),
        ([{"index": -1, "score": 1}], "scored document -1, but the request had only documents 0 to 2"),
        ([*tei(1.0, 2.0), {"index": 0, "score": 5.0}], "scores document 0 twice"),
        (
            [*tei(1.0, 2.0, 3.0), {"index": 3, "score": 5.0}],
            "scored document 3, but the request had only documents 0 to 2",
        ),
    ],
)
def test_an_answer_with_impossible_indices_or_scores_is_refused(content, reason):
    with pytest.raises(EndpointError, match=reason):
        logits_of(content)
    with pytest.raises(EndpointError, match="has no list 'results': the server does not use the dialect 'vllm'"):
        logits_of(tei(1.0), dialect="vllm")
    with pytest.raises(EndpointError, match=r"score 3\.2 is not a probability: set scores = \"logit\""):
        logits_of(tei(0.5, 3.2), scale="probability")


def test_a_document_without_a_valid_score_fails_alone():
    left_out = dict.fromkeys((0, 1), "the server's response has no score for it")
    assert logits_of([{"index": 2, "score": 1.5}]) == ({2: 1.5}, left_out)
    content = json.loads('[{"index": 0, "score": NaN}, {"index": 1, "score": 2}, {"index": 2, "score": -Infinity}]')
    logits, failures = logits_of(content)
    assert logits == {1: 2.0}
    assert failures == {0: "the server's score is not a number: nan", 2: "the server's score is not a number: -inf"}
    assert logits_of(tei(None, "0.5", 1e300))[0] == {}
    assert logits_of(tei(10**400, True, 0.5))[0] == {2: 0.5}


def test_the_order_of_probabilities_is_the_order_of_logits():
    chances = [0.0, 1e-38, 1e-30, 1e-7, 2e-7, 0.4999999, 0.5, 0.5000001, 0.9, 0.9999998, 0.9999999, 1.0]
    logits, failures = logits_of(tei(*chances), len(chances), scale="probability")
    values = np.array([logits[index] for index in range(len(chances))], dtype=np.float32)
    assert failures == {}
    assert np.isfinite(values).all()
    assert values[0] == values[1]
    assert all(first < second for first, second in itertools.pairwise(values[1:]))
    assert 1 / (1 + math.exp(-logits[8])) == pytest.approx(0.9)


def test_documents_that_an_osrerank_server_could_not_score_stay_unscored():
    content = [{"index": index, "score": score} for index, score in ((2, 3.0), (0, 1.0), (1, 0.9999999))]
    logits, failures = logits_of(content, dialect="osrerank", **{"x-rerank-unscored": "1"})
    assert logits == {2: 3.0, 0: 1.0}
    assert failures == {1: "the server's model failed on it"}
