"""The factor between BM25 scores of older engines and those of OpenSearch 3."""

import logging
from pathlib import Path
from typing import Any

import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig, ObjectApiResponse

from osrerank import connect
from osrerank.response import make_candidates
from osrerank.retrieval.bm25_scale import NO_FACTOR, Bm25Scale, Bm25ScaleCache
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import Query, Ranking
from osrerank.types.engine_errors import EngineError
from tests.rankings import response_of
from tests.recording_engine import MAPPING
from tests.rerank_server import Received, Reply, answering
from tests.unit.retrieval.answered import answered

MATCH = {"query": {"match": {"text": "a"}}}
OPENSEARCH_2 = {"version": {"distribution": "opensearch", "number": "2.19.6"}}
OPENSEARCH_3 = {"version": {"distribution": "opensearch", "number": "3.6.0"}}
ELASTICSEARCH = {"version": {"number": "9.4.3", "build_flavor": "default"}}
SETTINGS = {
    "tuned": {"settings": {"index.similarity.default.type": "BM25", "index.similarity.default.k1": "0.9"}},
    "other": {"settings": {"index.similarity.default.type": "LMDirichlet"}},
}


@pytest.mark.parametrize("engine", [OPENSEARCH_2, ELASTICSEARCH])
def test_the_bm25_factor_of_each_index_is_used(engine: dict[str, Any]) -> None:
    scale, _ = answered(Bm25ScaleCache().find("tuned,other,plain", MATCH), engine, SETTINGS)
    assert scale == Bm25Scale(2.2, {"tuned": 1.9, "other": 1.0})
    hits = [{"_index": name, "_id": name, "_score": 9.5} for name in ("tuned", "other", "plain")]
    ranking = scale.rescale(Ranking(Query("q", "a"), make_candidates(hits, ["text"])), hits)
    firsts = [candidate.trace[0] for candidate in ranking.candidates]
    assert [score.parts["bm25"] for score in firsts] == pytest.approx([5.0, 9.5, 9.5 / 2.2])
    assert [score.score for score in firsts] == [9.5, 9.5, 9.5]  # the engine's own stays


def test_opensearch_3_has_no_bm25_factor_and_is_asked_once_a_minute() -> None:
    clock = ManualClock()
    scales = Bm25ScaleCache(clock)
    assert answered(scales.find("a", MATCH), OPENSEARCH_3) == (NO_FACTOR, ["/"])
    assert answered(scales.find("a", MATCH)) == (NO_FACTOR, [])
    clock.sleep(61)
    assert answered(scales.find("a", MATCH), OPENSEARCH_3) == (NO_FACTOR, ["/"])
    hits = [{"_index": "a", "_id": "1", "_score": 2.0}]
    ranking = Ranking(Query("q", "a"), make_candidates(hits, ["text"]))
    assert NO_FACTOR.rescale(ranking, hits) is ranking


@pytest.mark.parametrize("kind", ["hybrid", "knn", "script_score"])
def test_scores_that_are_not_bm25_stay_unchanged(kind: str) -> None:
    assert answered(Bm25ScaleCache().find("a", {"query": {kind: {}}})) == (NO_FACTOR, [])


@pytest.mark.parametrize(("product", "factor"), [("Elasticsearch", 2.2), ("", 1.0)])
def test_a_response_of_elasticsearchs_client_has_elasticsearchs_factor(
    tmp_path: Path, product: str, factor: float
) -> None:
    meta = ApiResponseMeta(200, "1.1", HttpHeaders({"X-Elastic-Product": product}), 0.1, NodeConfig("http", "h", 9200))
    response = ObjectApiResponse(response_of(["a", "bbb", "cc"]), meta)
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=FunctionScorer(lambda _q, text: len(text))) as client:
        reranked = client.rerank_response(response, "a", options={"sentences": {"a": 0.5}})
    for hit in reranked["hits"]["hits"]:
        bm25 = hit["_rerank"]["first_pass"]["score"] / factor
        assert hit["_rerank"]["sentences"]["score"] == pytest.approx(0.5 * bm25 + 0.5 * len(hit["_source"]["text"]))


def test_an_unreadable_version_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    scales = Bm25ScaleCache()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert answered(scales.find("a", MATCH), EngineError(OSError("no"), status=403))[0] == NO_FACTOR
    assert caplog.text.count("[score-scale-unread]") == 1
    assert (
        answered(scales.find("b", MATCH), OPENSEARCH_2, EngineError(OSError("no such index"), status=404))[0]
        == NO_FACTOR
    )


@pytest.mark.parametrize(("engine", "factor"), [(OPENSEARCH_2, 2.2), (OPENSEARCH_3, 1.0)], ids=["2", "3"])
def test_birchs_sentences_add_the_first_pass_on_the_scale_of_their_weights(engine: Any, factor: float) -> None:
    def answer(received: Received) -> Reply:
        content = response_of(["a", "bbb", "cc"])
        if received.method == "GET":
            content = engine if received.path == "/" else {} if "/_settings/" in received.path else MAPPING
        for hit in content.get("hits", {}).get("hits", ()):
            hit["_score"] *= factor
        return Reply(content, headers=(("Content-Type", "application/json"),))

    with answering(answer) as server, connect(server.url, scorer=FunctionScorer(lambda _q, text: len(text))) as client:
        response = client.search("a", index="articles", rerank={"sentences": {"a": 0.5}})
    assert response["rerank"]["applied"] is True
    for hit in response["hits"]["hits"]:
        marks = hit["_rerank"]
        bm25 = marks["first_pass"]["score"] / factor
        assert marks["first_pass"].get("bm25", marks["first_pass"]["score"]) == pytest.approx(bm25)
        assert marks["sentences"]["score"] == pytest.approx(0.5 * bm25 + 0.5 * len(hit["_source"]["text"]))
