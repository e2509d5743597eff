"""Answers that cannot be used, as a whole or for some documents."""

import itertools
import json
import math

import numpy as np
import pytest

from osrerank.errors import EndpointError
from osrerank.scoring.backends.http.answers import read
from osrerank.scoring.backends.http.dialects import DIALECTS

TEI, VLLM = DIALECTS["tei"], DIALECTS["vllm"]


def tei(*scores):
    return [{"index": place, "score": score} for place, score in enumerate(scores)]


def logits_of(content, count=3, *, dialect=TEI, scale="logit", **headers):
    return read(dialect, scale, content, count, headers)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"error": "no"}, "has no list: it does not speak the dialect tei, set OSRERANK_RERANK_DIALECT"),
        ("scores", "has no list"),
        ([0.5, 0.1], "has an item without index and score"),
        ([{"index": "0", "score": 1}], "has an item without index"),
        ([{"index": True, "score": 1}], "has an item without index"),
        ([{"index": 0}], "without index and score"),
        ([{"index": 3, "score": 1}], "scored document 3, but the request has only 3"),
        ([{"index": -1, "score": 1}], "scored document -1, but the request has only 3"),
        ([*tei(1.0, 2.0), {"index": 0, "score": 5.0}], "scores document 0 twice"),
        ([*tei(1.0, 2.0, 3.0), {"index": 3, "score": 5.0}], "scored document 3, but the request has only 3"),
    ],
)
def test_an_answer_that_is_not_to_be_trusted(content, reason):
    with pytest.raises(EndpointError, match=reason):
        logits_of(content)


def test_an_answer_in_another_dialect():
    with pytest.raises(EndpointError, match="has no list results: it does not speak the dialect vllm"):
        logits_of(tei(1.0), dialect=VLLM)


def test_documents_that_are_left_out_fail_alone():
    logits, failures = logits_of([{"index": 2, "score": 1.5}])
    assert logits == {2: 1.5}
    assert failures == dict.fromkeys((0, 1), "the server's answer has no score for it")


def test_what_is_not_a_number_fails_alone():
    content = json.loads('[{"index": 0, "score": NaN}, {"index": 1, "score": 2}, {"index": 2, "score": -Infinity}]')
    logits, failures = logits_of(content)
    assert logits == {1: 2.0}
    assert failures == {0: "the server's score is not a number: nan", 2: "the server's score is not a number: -inf"}
    assert logits_of(tei(None, "0.5", 1e300))[0] == {}
    assert logits_of(tei(10**400, True, 0.5))[0] == {2: 0.5}


def test_a_score_beyond_one_is_no_probability():
    with pytest.raises(EndpointError, match=r"score 3\.2 is no probability: set OSRERANK_RERANK_SCORES=logit"):
        logits_of(tei(0.5, 3.2), scale="probability")


def test_the_order_of_probabilities_is_the_order_of_logits():
    chances = [0.0, 1e-38, 1e-30, 1e-7, 2e-7, 0.4999999, 0.5, 0.5000001, 0.9, 0.9999998, 0.9999999, 1.0]
    logits, failures = logits_of(tei(*chances), len(chances), scale="probability")
    values = np.array([logits[place] for place in range(len(chances))], dtype=np.float32)
    assert failures == {}
    assert np.isfinite(values).all()
    assert values[0] == values[1]
    assert all(first < second for first, second in itertools.pairwise(values[1:]))
    assert 1 / (1 + math.exp(-logits[8])) == pytest.approx(0.9)


def test_what_osrerank_could_not_score_is_not_scored_here():
    content = [{"index": place, "score": score} for place, score in ((2, 3.0), (0, 1.0), (1, 0.9999999))]
    logits, failures = logits_of(content, dialect=DIALECTS["osrerank"], **{"x-rerank-unscored": "1"})
    assert logits == {2: 3.0, 0: 1.0}
    assert failures == {1: "the server's model failed on it"}
