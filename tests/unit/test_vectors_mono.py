"""The pipeline vectors, then mono: stored vectors order the hits, and a cross-encoder the best of them."""

import asyncio
from typing import Any

import numpy as np
import pytest

from osrerank import Reranker, connect
from osrerank.errors import ConfigError, InferenceError, ModelLoadError
from osrerank.options.rerank import Rerank
from osrerank.testing import CannedTransport, FunctionScorer, ManualClock
from osrerank.thresholds.calibration import IndexCalibration, model_digest
from osrerank.thresholds.cut import Thresholds
from osrerank.thresholds.maps import Platt
from osrerank.types import Advice
from tests.letters import Letters
from tests.rankings import ids, ranking_of, response_of
from tests.rerank_server import answering, by_length, server_file
from tests.workers import TINY

LOW = ["mmm", "mmml", "mmmlo", "mmmlow", "mmlow..", "mlow...."]
"""Texts in the first pass's order: vectors of the query "low" find the last ones best."""
BY_LENGTH = FunctionScorer(lambda _query, text: -float(len(text)))
"""A cross-encoder that finds the shortest best."""


class Encoder(Letters):
    """Counts letters, with advice of its own."""

    def __init__(self, **advice: Any) -> None:
        super().__init__()
        self.advice = Advice(kind="bi-encoder", **advice)

    def similarity(self, query, vectors):
        return np.asarray(10 * (vectors @ query) - 5, dtype=np.float32)


def by_length_with(**advice: Any) -> FunctionScorer:
    """That cross-encoder, with a card that says something more."""
    return type("Advised", (FunctionScorer,), {"advice": Advice(**advice)})(BY_LENGTH.function)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS", "off")


def client_for(texts=LOW, scorer=BY_LENGTH, encoder=None, **options):
    transport = {"transport_class": CannedTransport, "answer": response_of(texts)}
    encoder = Encoder() if encoder is None else encoder or None  # False for the settings'
    return connect("http://localhost:9", scorer=scorer, encoder=encoder, **transport, **options)


def search(client, query="low", page=None, **options):
    asked = {"pipeline": "vectors-mono", "mono_depth": 3, **options}
    return client.search(query, index="i", rerank=asked, **(page or {}))


def stages(response):
    return [stage["name"] for stage in response["rerank"]["stages"]]


def vectors_order(client, **options):
    return ids(search(client, pipeline="vectors", **options))


def test_the_cross_encoder_reorders_the_best_hits_by_vectors():
    client = client_for()
    by_vectors = vectors_order(client)
    assert by_vectors == ["d5", "d4", "d3", "d2", "d1", "d0"]
    response = search(client)
    assert stages(response) == ["vectors", "mono"]
    assert [stage["candidates"] for stage in response["rerank"]["stages"]] == [6, 3]
    assert ids(response)[:3] == sorted(by_vectors[:3])  # the shortest first
    assert ids(response)[3:] == by_vectors[3:]
    levels = [int(hit["_score"]) for hit in response["hits"]["hits"]]
    assert levels == [2, 2, 2, 1, 1, 1]
    scores = [hit["_score"] for hit in response["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert set(response["hits"]["hits"][0]["_rerank"]) == {"first_pass", "vectors", "mono"}


def test_bm25_is_blended_once_in_vectors_mono():
    response = search(
        client_for(scorer=by_length_with(first_pass_weight=100.0), encoder=Encoder(first_pass_weight=50.0))
    )
    assert stages(response) == ["vectors", "blend", "mono"]
    assert ids(response) == ["d0", "d1", "d2", "d3", "d4", "d5"]
    assert [int(hit["_score"]) for hit in response["hits"]["hits"]] == [2, 2, 2, 1, 1, 1]
    assert stages(search(client_for(encoder=Encoder(first_pass_weight=50.0)), blend="replace")) == ["vectors", "mono"]
    named = search(client_for(), blend="linear", blend_weight=50)
    assert (stages(named), ids(named)) == (["vectors", "blend", "mono"], ids(response))


def test_the_cross_encoders_card_gives_the_weight_of_the_vectors_logit():
    client = client_for(scorer=by_length_with(vectors_weight=20.0))
    response = search(client, mono_depth=6)
    assert stages(response) == ["vectors", "mono", "vectors_blend"]
    for hit in response["hits"]["hits"]:
        marks = hit["_rerank"]
        expected = marks["mono"]["score"] + 20 * marks["vectors"]["score"]
        assert marks["vectors_blend"]["score"] == pytest.approx(expected)
        assert 2 <= hit["_score"] < 3
    assert ids(response) == sorted(ids(response), key=lambda doc_id: -score_of(response, doc_id, "vectors_blend"))
    assert ids(response) != ids(search(client_for(), mono_depth=6))


def score_of(response, doc_id, stage):
    return next(hit["_rerank"][stage]["score"] for hit in response["hits"]["hits"] if hit["_id"] == doc_id)


def test_min_score_reads_the_cross_encoders_probability():
    client = client_for(scorer=FunctionScorer(lambda _query, text: 2.0 - len(text)))
    best = vectors_order(client)[:3]
    whole_response, kept_response = search(client), search(client, min_score=0.005)
    probabilities = {
        hit["_id"]: hit["_rerank"].get("mono", {}).get("probability", 0) for hit in whole_response["hits"]["hits"]
    }
    assert set(ids(kept_response)) == {doc_id for doc_id in best if probabilities[doc_id] >= 0.005}
    assert 0 < len(ids(kept_response)) < 3
    assert kept_response["rerank"]["below_min_score"] == 6 - len(ids(kept_response))
    with Reranker(scorer=BY_LENGTH, encoder=Encoder(), pipeline="vectors-mono", mono_depth=2, min_score=1e-9) as ranker:
        assert len(ranker.rank("low", LOW)) == 2


def test_a_calibration_of_the_cross_encoder_cuts_nothing_where_it_did_not_run():
    thresholds = Thresholds(min_probability=0.5, calibration=IndexCalibration("mono", Platt(1.0, 0.0), "", ""))
    candidates = ranking_of(LOW).candidates
    kept_hits, (cut,) = thresholds.remove_hits(candidates)
    assert (kept_hits, cut.n_removed) == (list(candidates), 0)
    assert 'the stage "mono", for which the index is calibrated, scored no hit' in cut.reason


def test_the_identity_of_vectors_mono_has_both_models_and_the_weight():
    def digest(client, **options):
        rerank = Rerank(pipeline="vectors-mono", **options)
        return model_digest(client.searcher.service.identity(rerank), rerank)

    encoder = Encoder()
    encoder.identity = "letters-2"
    digests = [
        digest(client_for()),
        digest(client_for(encoder=encoder)),
        digest(client_for(scorer=FunctionScorer())),
        digest(client_for(scorer=by_length_with(vectors_weight=1.0))),
        digest(client_for(), blend="linear", blend_weight=1.0),
        digest(client_for(encoder=Encoder(first_pass_weight=2.0))),
        model_digest(client_for().searcher.service.identity(Rerank(pipeline="mono")), Rerank(pipeline="mono")),
        model_digest(client_for().searcher.service.identity(Rerank(pipeline="vectors")), Rerank(pipeline="vectors")),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(client_for()) == digests[0]


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"scorer": None, "model": "osrerank/none"}, ModelLoadError, "osrerank ships no model 'osrerank/none'"),
        ({"scorer": FunctionScorer(broken=True)}, InferenceError, "this scorer is broken on purpose"),
    ],
    ids=["missing", "failing"],
)
def test_without_the_cross_encoder_the_order_by_vectors_stays(options, error, reason):
    client = client_for(**options)
    response = search(client)
    assert response["rerank"]["applied"] == "partial"
    assert response["rerank"]["reason"].startswith(f"mono: {reason}")
    assert ids(response) == vectors_order(client_for())
    assert [int(hit["_score"]) for hit in response["hits"]["hits"]] == [1] * 6
    with pytest.raises(error, match=reason):
        search(client, on_failure="raise")


def test_a_missing_vector_model_leaves_the_first_pass_and_names_the_fix():
    with client_for(encoder=False, vector_model=TINY) as client:
        response = search(client)
    assert response["rerank"]["applied"] is False
    assert "is a cross-encoder model; choose a bi-encoder or late-interaction model" in response["rerank"]["reason"]
    assert "OSRERANK_VECTOR_MODEL" in response["rerank"]["reason"]


def test_vectors_mono_refuses_a_bi_encoder_and_sentences():
    reason = r"vectors-mono needs a cross-encoder, and letters is a bi-encoder; .*--model"
    with pytest.raises(ConfigError, match=reason):
        search(client_for(scorer=Letters()))
    with pytest.raises(ConfigError, match="sentences cannot be combined with the pipeline vectors-mono"):
        search(client_for(), sentences=True)


def test_a_deadline_in_the_cross_encoder_reorders_the_scored_prefix():
    clock = ManualClock()
    slow = FunctionScorer(BY_LENGTH.function, seconds_per_pair=1, sleep=clock.sleep)
    client = client_for(scorer=slow, clock=clock)
    response = search(client, mono_depth=6, deadline_ms=2_000)
    by_vectors = vectors_order(client_for())
    assert [stage["applied"] for stage in response["rerank"]["stages"]] == [True, "partial"]
    assert ids(response) == [*sorted(by_vectors[:2]), *by_vectors[2:]]


def test_vectors_mono_has_no_default_deadline():
    clock = ManualClock()
    slow = FunctionScorer(BY_LENGTH.function, seconds_per_pair=10, sleep=clock.sleep)
    assert search(client_for(scorer=slow, clock=clock))["rerank"]["applied"] is True


def test_pages_of_vectors_mono_join():
    client, pages = client_for(), []
    response = search(client, page={"size": 6})
    for start in range(0, 6, 2):
        pages += ids(search(client, page={"size": 2, "from_": start}))
    assert pages == ids(response)
    later = search(client, page={"size": 2, "from_": 4})
    assert later["hits"]["max_score"] == response["hits"]["max_score"]
    assert later["rerank"]["applied"] is True


def test_a_query_that_the_cross_encoder_does_not_read_keeps_the_order_by_vectors():
    client = client_for(scorer=by_length_with(languages=("en",)))
    response = search(client, query="давление")
    assert (stages(response), response["rerank"]["applied"]) == (["vectors", "language"], "partial")
    assert "mostly in Cyrillic, and testing/function reads en" in response["rerank"]["reason"]
    assert search(client, query="давление", language_guard=False)["rerank"]["applied"] is True


def test_vectors_mono_duo_compares_the_cross_encoders_best():
    client = client_for(duo_scorer=FunctionScorer(lambda _query, text: float(len(text))))
    response = search(client, pipeline="vectors-mono-duo", mono_depth=3, duo_depth=20)
    assert stages(response) == ["vectors", "mono", "duo"]
    assert response["rerank"]["stages"][2]["candidates"] == 3
    assert [int(hit["_score"]) for hit in response["hits"]["hits"]] == [3, 3, 3, 1, 1, 1]
    assert ids(response)[:3] == ids(search(client))[:3][::-1]


def test_the_asynchronous_client_runs_vectors_mono():
    pytest.importorskip("aiohttp")
    from osrerank.aio import connect_async

    options = {"pipeline": "vectors-mono-duo", "mono_depth": 4, "duo_depth": 3}
    scorers = {"scorer": BY_LENGTH, "duo_scorer": FunctionScorer(lambda _query, text: float(len(text)))}

    async def answer():
        client = connect_async("http://localhost:9", encoder=Encoder(), **scorers)
        try:
            return await client.rerank("low", LOW, options=options)
        finally:
            await client.close()

    expected = ids(search(client_for(**scorers), blend="replace", **options))
    assert [f"d{candidate.doc_id}" for candidate in asyncio.run(answer()).candidates] == expected


def test_a_rerank_server_scores_the_best_hits_by_local_vectors(tmp_path, monkeypatch):
    with answering(by_length) as server:
        monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(server_file(tmp_path, server.url, dialect="tei")))
        response = search(client_for(scorer=None, encoder=False, backend="http"))
    assert response["rerank"]["stages"][0]["model"] == "osrerank/e5-small"
    assert [stage["candidates"] for stage in response["rerank"]["stages"]] == [6, 6, 3]
    assert (stages(response), response["rerank"]["applied"]) == (["vectors", "blend", "mono"], True)
