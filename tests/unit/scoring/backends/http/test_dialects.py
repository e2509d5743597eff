"""Requests and answers as the servers' public documentation shows them; `backends.http.dialects` has where.

The texts are ours; names, nesting and the kinds of values are theirs.
"""

import math

import pytest

from tests.rerank_server import Reply, answering

QUERY, TEXTS = "q", ["first", "second", "third"]
TUPLES = [(0,), (1,), (2,)]
RESULTS = [{"index": place, "relevance_score": score} for place, score in ((2, 0.9), (0, 0.5), (1, 0.1))]
LOGITS = [0.0, math.log(1 / 9), math.log(9)]
DOCUMENTS = {"query": QUERY, "documents": TEXTS}

CASES = {
    "cohere-v1": (
        "/v1/rerank",
        {**DOCUMENTS, "model": "m", "top_n": 3, "return_documents": False},
        {
            "id": "8bc7",
            "results": RESULTS,
            "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
        },
    ),
    "cohere-v2": (
        "/v2/rerank",
        {**DOCUMENTS, "model": "m", "top_n": 3},
        {"id": "0773", "results": RESULTS, "meta": {"api_version": {"version": "2", "is_experimental": False}}},
    ),
    "jina": (
        "/v1/rerank",
        {**DOCUMENTS, "model": "m", "top_n": 3, "return_documents": False},
        {"model": "m", "usage": {"total_tokens": 815}, "results": RESULTS},
    ),
    "voyage": (
        "/v1/rerank",
        {**DOCUMENTS, "model": "m", "truncation": True},
        {"object": "list", "data": RESULTS, "model": "m", "usage": {"total_tokens": 26}},
    ),
    "tei": (
        "/rerank",
        {"query": QUERY, "texts": TEXTS, "truncate": True, "raw_scores": True},
        [{"index": one["index"], "score": LOGITS[one["index"]]} for one in RESULTS],
    ),
    "vllm": (
        "/rerank",
        {**DOCUMENTS, "model": "m", "top_n": 3, "truncate_prompt_tokens": -1},
        {
            "id": "rerank-fae5",
            "model": "m",
            "usage": {"total_tokens": 56},
            "results": [{**one, "document": {"text": TEXTS[one["index"]]}} for one in RESULTS],
        },
    ),
    "vllm-score": (
        "/score",
        {"text_1": QUERY, "text_2": TEXTS, "model": "m", "truncate_prompt_tokens": -1},
        {
            "id": "score-request-id",
            "object": "list",
            "created": 693570,
            "model": "m",
            "data": [{"index": at, "object": "score", "score": score} for at, score in enumerate((0.5, 0.1, 0.9))],
            "usage": {},
        },
    ),
}


@pytest.mark.parametrize("dialect", CASES)
def test_as_documented(scorer_of, dialect):
    path, asked, answer = CASES[dialect]
    with answering(lambda _received: Reply(answer)) as server:
        scorer = scorer_of(server.url, dialect, model="m", rerank_key="k3y")
        scores = scorer.score(QUERY, TEXTS, TUPLES)
    assert scores.values.tolist() == pytest.approx(LOGITS, abs=1e-6)
    assert (scores.failures, scores.reached, scores.inferences) == ({}, 3, 3)
    assert scorer.probabilities(scores.values).tolist() == pytest.approx([0.5, 0.1, 0.9])
    received = server.received[0]
    assert (received.method, received.path, received.body) == ("POST", path, asked)
    assert received.headers["authorization"] == "Bearer k3y"


def test_servers_that_need_no_name_are_sent_none(scorer_of):
    for dialect in ("vllm", "vllm-score", "tei", "osrerank"):
        with answering(lambda _received, dialect=dialect: Reply(CASES.get(dialect, CASES["tei"])[2])) as server:
            scorer = scorer_of(server.url, dialect)
            scorer.score(QUERY, TEXTS, TUPLES)
        assert "model" not in server.received[0].body
        assert "authorization" not in server.received[0].headers
        assert scorer.model == f"the model of 127.0.0.1:{server.server_port}"


def test_logits_and_probabilities_on_request(scorer_of):
    answer = {"results": [{"index": at, "relevance_score": score} for at, score in enumerate((-3.0, 0.5, 7.0))]}
    with answering(lambda _received: Reply(answer)) as server:
        scores = scorer_of(server.url, "vllm", rerank_scores="logit").score(QUERY, TEXTS, TUPLES)
    assert scores.values.tolist() == [-3.0, 0.5, 7.0]
    assert server.received[0].body["use_activation"] is False
    answer = [{"index": at, "score": score} for at, score in enumerate((0.5, 0.1, 0.9))]
    with answering(lambda _received: Reply(answer)) as server:
        scores = scorer_of(server.url, "tei", rerank_scores="probability").score(QUERY, TEXTS, TUPLES)
    assert scores.values.tolist() == pytest.approx(LOGITS, abs=1e-6)
    assert server.received[0].body["raw_scores"] is False
