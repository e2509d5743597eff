"""Marks and warnings in responses: cut texts, malformed responses, times and deadlines."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank import Rerank, Reranker, connect
from osrerank.errors import ConfigError, ResponseFormatError
from osrerank.options.rerank import MAX_MS
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.first_pass import FirstPass, plan_first_pass
from osrerank.scoring.cache.local import EmptyStore, LocalStore
from osrerank.scoring.cache.scorer import CachedScorer
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.remote.messages import Reply
from osrerank.stages.mono import MonoStage
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Scorer, Scores
from osrerank.types.reasons import Reason
from osrerank.types.scores import QUERY_TRUNCATED_BIT
from tests.rankings import ranking_of, response_of

DATA = Path(__file__).parents[1] / "data"
LONG = "blood pressure " * 400


def cached(name: str = "tiny-bert-one-label") -> Scorer:
    return CachedScorer(load_scorer(str(DATA / name), backend="onnx", threads=1), EmptyStore(), LocalStore(1e6))


def test_cut_documents_are_counted_once_with_a_cache_and_in_pairs() -> None:
    scorer = cached()
    for inferences in (3, 0):
        ranking = MonoStage(scorer).rerank(ranking_of([LONG, "low", LONG + "x"], "salt " * 100))
        report = ranking.reports[0]
        assert (report.inferences, report.truncated, report.query_truncated) == (inferences, 2, True)
        assert sorted(candidate.doc_id for candidate in ranking.candidates if candidate.trace[-1].cut) == ["d0", "d2"]
    scorer = cached("tiny-bert-duo")
    for inferences in (6, 0):
        scores = scorer.score("low", [LONG, "low", LONG + "x"], [(i, j) for i in range(3) for j in range(3) if i != j])
        assert (scores.inferences, scores.truncated, scores.query_truncated) == (inferences, 2, False)


def test_workers_report_cut_documents() -> None:
    scores = Scores(
        np.ones(3, np.float32), inferences=3, truncated=1, cuts=np.array([0, 1, QUERY_TRUNCATED_BIT], np.uint8)
    )
    read = Reply.decode(Reply("c", "w", "m", scores).encode()).scores
    assert read is not None
    assert read.cuts is not None
    assert read.cuts.tolist() == [0, 1, QUERY_TRUNCATED_BIT]
    assert read.truncated_documents([(0,), (1,), (2,)]) == {1}


def test_ranked_texts_are_marked_if_they_were_cut() -> None:
    reranker = Reranker(str(DATA / "tiny-bert-one-label"), backend="onnx", passages="off")
    assert {text.doc_id: text.truncated for text in reranker.rank("low", [LONG, "low", "..."])} == {
        0: True, 1: False, 2: False,
    }  # fmt: skip
    reranker.close()


def test_the_order_of_a_sort_is_read_whatever_its_case() -> None:
    for sort in ({"_score": {"order": "DESC"}}, [{"_score": "Desc"}, {"n": "asc"}], "_score:DESC"):
        assert isinstance(plan_first_pass({"sort": sort}, {}, Rerank(), 100, SearchFields()), FirstPass)
    assert isinstance(
        plan_first_pass({"sort": {"_score": {"order": "ASC"}}}, {}, Rerank(), 100, SearchFields()), Reason
    )


@pytest.mark.parametrize(
    "body", [{"size": None}, {"from": None}, {"size": True}, {"size": 1.5}, {"size": "x"}, {"sort": None}]
)
def test_bodies_that_opensearch_refuses_are_sent_unchanged(body: dict[str, Any]) -> None:
    assert isinstance(plan_first_pass(body, {}, Rerank(), 100, SearchFields()), Reason)


def test_a_collapsed_search_warns() -> None:
    answer = response_of(["a", "bb"])
    client = connect("http://localhost:9", scorer=FunctionScorer(), transport_class=CannedTransport, answer=answer)
    body = {"query": {"match": {"text": "a"}}, "collapse": {"field": "group"}}
    marks = client.search(index="i", body=body, rerank=True)["rerank"]
    assert marks["applied"] is True
    assert "collapse shows each group by the hit that the first pass ranks highest" in marks["warnings"][0]
    assert client.search("a", index="i", rerank=True)["rerank"]["warnings"] == []


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"_source": ["x"]}, "$.hits.hits[0]._source is a list"),
        ({"_source": "x"}, "$.hits.hits[0]._source is a str"),
        ({"fields": [1]}, "$.hits.hits[0].fields is a list"),
        ({"highlight": "x"}, "$.hits.hits[0].highlight is a str"),
        ({"inner_hits": {"a": [1]}}, "inner_hits.a.hits.hits is not a list of hits"),
    ],
)
def test_a_malformed_response_is_refused_with_its_path(part: dict[str, Any], path: str) -> None:
    client = connect("http://localhost:9", scorer=FunctionScorer(), transport_class=CannedTransport)
    hit = {"_id": "1", "_score": 1.0, "_source": {"text": "a"}, **part}
    with pytest.raises(ResponseFormatError) as refused:
        client.rerank_response({"hits": {"hits": [hit]}}, "a", options={"fields": ["inner_hits:a.text", "text"]})
    assert path in str(refused.value)


@pytest.mark.parametrize("took", [None, "soon", math.nan])
def test_a_response_time_that_is_no_number_is_left_out(took: Any) -> None:
    client = connect("http://localhost:9", scorer=FunctionScorer(), transport_class=CannedTransport)
    marks = client.rerank_response({**response_of(["a"]), "took": took}, "a")["rerank"]
    assert (marks["applied"], marks["first_pass_took_ms"]) == (True, 0)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e18, MAX_MS + 1, 0, -1, "5"])
def test_a_deadline_option_must_be_finite_and_bounded(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"deadline_ms is .*; it must be a number of milliseconds above 0, at most"):
        Rerank(deadline_ms=value)
    assert Rerank(deadline_ms=MAX_MS).deadline_ms == MAX_MS
