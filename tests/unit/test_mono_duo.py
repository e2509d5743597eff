"""The pipeline mono-duo in the search call, without a server: options, models, cache, failures."""

import asyncio

import pytest

from osrerank import connect
from osrerank.errors import InferenceError, ModelLoadError
from osrerank.testing import CannedTransport, FunctionScorer, ManualClock
from tests.rankings import response_of
from tests.servers import ROOT

DATA = ROOT / "tests" / "data"
BY_LENGTH = FunctionScorer(lambda _query, text: float(len(text)))
SHORTER = FunctionScorer(lambda _query, text: -float(len(text)))
TEXTS = ["a", "bbb", "cc", "dddd"]


def client_for(texts=TEXTS, scorer=BY_LENGTH, duo_scorer=SHORTER, **options):
    transport = {"transport_class": CannedTransport, "answer": response_of(texts)}
    return connect("http://localhost:9", scorer=scorer, duo_scorer=duo_scorer, **transport, **options)


def search(client, **options):
    return client.search("low", index="i", rerank={"pipeline": "mono-duo", **options})


def ids(response):
    return [hit["_id"] for hit in response["hits"]["hits"]]


def test_failing_pairs_leave_the_mono_order():
    client = client_for(duo_scorer=FunctionScorer(broken=True))
    response = search(client)
    assert ids(response) == ["d3", "d1", "d2", "d0"]
    assert response["rerank"]["applied"] == "partial"
    assert response["rerank"]["reason"] == "duo: this scorer is broken on purpose"
    with pytest.raises(InferenceError, match="on purpose"):
        search(client, on_failure="raise")


def test_no_duo_model_leaves_the_mono_order_and_mono_alone_needs_none():
    client = client_for(duo_scorer=None, duo_model="osrerank/none")
    response = search(client)
    assert ids(response) == ["d3", "d1", "d2", "d0"]
    assert response["rerank"]["applied"] == "partial"
    assert "osrerank ships no model osrerank/none" in response["rerank"]["reason"]
    assert "OSRERANK_DUO_MODEL" in response["rerank"]["reason"]
    assert client.search("low", index="i", rerank=True)["rerank"]["applied"] is True
    with pytest.raises(ModelLoadError, match="--duo-model"):
        search(client, on_failure="raise")


def test_without_a_named_duo_model_the_reason_says_which_to_name():
    response = search(client_for(duo_scorer=None))
    assert ids(response) == ["d3", "d1", "d2", "d0"]
    assert response["rerank"]["applied"] == "partial"
    assert "duobert-large-msmarco" in response["rerank"]["reason"]
    assert "OSRERANK_DUO_MODEL" in response["rerank"]["reason"]


def test_the_duo_model_of_0_2_is_refused_with_its_successor():
    response = search(client_for(duo_scorer=None, duo_model="osrerank/duo"))
    assert "name a duo model of your own" in response["rerank"]["reason"]


def test_a_mono_model_is_no_duo_model():
    client = client_for(duo_scorer=None, duo_model=str(DATA / "tiny-bert-one-label"))
    assert "is a mono model; a duo one is needed here" in search(client)["rerank"]["reason"]


def test_budgets_are_the_stages_own():
    clock = ManualClock()
    slow = FunctionScorer(SHORTER.function, seconds_per_pair=1, sleep=clock.sleep)
    client = client_for(["a" * place for place in range(1, 30)], duo_scorer=slow, clock=clock)
    response = search(client, duo_depth=29, duo_budget_ms=20_000)
    mono, duo = response["rerank"]["stages"]
    assert (mono["applied"], duo["applied"]) == (True, "partial")
    assert duo["inferences"] == 20
    assert search(client_for(), mono_budget_ms=1e-6)["rerank"]["applied"] is False


def test_least_probability_is_monos():
    response = search(client_for(), min_score=0.9)
    assert ids(response) == ["d1", "d3"]  # lengths 3 and 4, the shorter first
    assert all("probability" not in hit["_rerank"]["duo"] for hit in response["hits"]["hits"])


def test_each_pair_is_cached_by_itself(redis_url):
    calls = []

    def counted(_query, text):
        calls.append(text)
        return -float(len(text))

    client = client_for(duo_scorer=FunctionScorer(counted), redis_url=redis_url)
    client.search("low", index="i", rerank={"pipeline": "mono-duo", "duo_depth": 3})
    assert len(calls) == 2 * 6
    response = search(client)
    duo = response["rerank"]["stages"][1]
    assert (duo["inferences"], duo["cached"]) == (6, 6)  # the fourth document's pairs are new
    assert len(calls) == 2 * 12
    assert ids(response) == ["d0", "d2", "d1", "d3"]
    client.close()


def test_the_asynchronous_client_has_both_models():
    pytest.importorskip("aiohttp")
    from osrerank.aio import connect_async

    async def answer():
        client = connect_async("http://localhost:9", scorer=BY_LENGTH, duo_scorer=SHORTER)
        try:
            return await client.rerank("low", TEXTS, options={"pipeline": "mono-duo", "duo_depth": 3})
        finally:
            await client.close()

    assert [candidate.doc_id for candidate in asyncio.run(answer()).candidates] == ["2", "1", "3", "0"]
