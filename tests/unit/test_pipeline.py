"""Pipelines of stages: order, failures, deadlines, and whether a search counts as reranked."""

import pytest

from osrerank import MonoStage, Pipeline
from osrerank import pipeline as of_pipeline
from osrerank._log_throttle import LogThrottle
from osrerank.pipeline import find_applied
from osrerank.stages.interpolate import BlendStage
from osrerank.testing import FunctionScorer
from osrerank.types import Deadline, StageReport
from tests.rankings import ranking_of


def test_stages_run_in_order_and_have_distinct_names():
    first = MonoStage(FunctionScorer(lambda _q, text: -len(text)), depth=4, name="short")
    second = MonoStage(FunctionScorer(lambda _q, text: len(text)), depth=2, name="long")
    ranking = Pipeline((first, second)).rerank(ranking_of(["ccc", "a", "dddd", "bb", "eeeee"]))
    assert [candidate.text for candidate in ranking.candidates] == ["bb", "a", "ccc", "dddd", "eeeee"]
    assert [len(candidate.trace) for candidate in ranking.candidates] == [3, 3, 2, 2, 1]
    assert [report.name for report in ranking.reports] == ["short", "long"]
    with pytest.raises(ValueError, match="at least one"):
        Pipeline(())
    stage = MonoStage(FunctionScorer())
    with pytest.raises(ValueError, match="same name"):
        Pipeline((stage, stage))


def test_a_failed_stage_keeps_the_order_so_far_and_ends_the_pipeline():
    works = MonoStage(FunctionScorer(lambda _q, text: -len(text)), name="works")
    broken = MonoStage(FunctionScorer(broken=True), name="broken")
    never = MonoStage(FunctionScorer(), name="never")
    ranking = Pipeline((works, broken, never)).rerank(ranking_of(["bb", "a"]))
    assert [candidate.text for candidate in ranking.candidates] == ["a", "bb"]
    assert [(report.name, report.applied) for report in ranking.reports] == [("works", True), ("broken", False)]
    assert "on purpose" in ranking.reports[1].reason
    assert find_applied(ranking.reports) == "partial"


def test_a_stage_that_fails_at_each_search_is_logged_once_a_minute(caplog, monkeypatch):
    monkeypatch.setattr(of_pipeline, "log_throttle", LogThrottle())
    broken = Pipeline((MonoStage(FunctionScorer(broken=True)),))
    for _ in range(200):
        broken.rerank(ranking_of(["bb", "a"]))
    assert caplog.text.count("[stage-skipped]") == 1


def test_no_stage_begins_after_the_deadline():
    ranking = Pipeline((MonoStage(FunctionScorer()),)).rerank(ranking_of(["a", "b"]), deadline=Deadline(0.0))
    assert find_applied(ranking.reports) is False
    assert 'before the stage "mono" began' in ranking.reports[0].reason


def test_a_stage_without_anything_to_rank_ends_the_pipeline():
    ranking = ranking_of([None, None, "a"])
    pipeline = Pipeline((MonoStage(FunctionScorer(), depth=2), BlendStage("linear", 4.0)))
    after = pipeline.rerank(ranking)
    assert [report.name for report in after.reports] == ["mono"]
    assert after.candidates == ranking.candidates


def test_a_pipeline_counts_as_applied_partly_applied_or_not():
    yes, no, some = (StageReport("x", applied=value) for value in (True, False, "partial"))
    assert find_applied((yes, yes)) is True
    assert find_applied((yes, some)) == "partial"
    assert find_applied((yes, no)) == "partial"
    assert find_applied((no,)) is False
    assert find_applied(()) is False
