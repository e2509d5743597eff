"""The pipeline mono, then duo: missing models, deadlines, and thresholds."""

import pytest

from osrerank.errors import ModelLoadError
from osrerank.testing import FunctionScorer, ManualClock
from tests import rankings
from tests.rankings import BY_LENGTH, ids
from tests.workers import TINY

SHORTER = FunctionScorer(lambda _query, text: -float(len(text)))
TEXTS = ["a", "bbb", "cc", "dddd"]


def client_for(texts=TEXTS, scorer=BY_LENGTH, duo_scorer=SHORTER, **options):
    return rankings.client_for(texts, scorer, duo_scorer=duo_scorer, **options)


def search(client, **options):
    return client.search("low", index="i", rerank={"pipeline": "mono-duo", **options})


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({}, "duobert-large-msmarco"),
        ({"duo_model": "osrerank/none"}, "osrerank ships no model 'osrerank/none'"),
        ({"duo_model": "osrerank/duo"}, "name a duo model of your own"),  # 0.2's
        ({"duo_model": TINY}, "is a cross-encoder model; choose a duo model"),
    ],
)
def test_without_a_duo_model_the_mono_order_stays(named, reason):
    client = client_for(duo_scorer=None, **named)
    response = search(client)
    assert ids(response) == ["d3", "d1", "d2", "d0"]
    assert response["rerank"]["applied"] == "partial"
    assert reason in response["rerank"]["reason"]
    assert "OSRERANK_DUO_MODEL" in response["rerank"]["reason"]
    assert client.search("low", index="i", rerank=True)["rerank"]["applied"] is True
    with pytest.raises(ModelLoadError, match="--duo-model"):
        search(client, on_failure="raise")


def test_a_deadline_in_mono_duo_compares_the_first_candidates():
    clock = ManualClock()
    slow = FunctionScorer(SHORTER.function, seconds_per_pair=1, sleep=clock.sleep)
    client = client_for(["a" * index for index in range(1, 30)], duo_scorer=slow, clock=clock)
    response = search(client, duo_depth=29, deadline_ms=20_000)
    mono, duo = response["rerank"]["stages"]
    assert (mono["applied"], duo["applied"]) == (True, "partial")
    assert duo["inferences"] == 20


def test_min_score_reads_the_mono_probability():
    response = search(client_for(), min_score=0.9)
    assert ids(response) == ["d1", "d3"]  # lengths 3 and 4, the shorter first
    assert all("probability" not in hit["_rerank"]["duo"] for hit in response["hits"]["hits"])
