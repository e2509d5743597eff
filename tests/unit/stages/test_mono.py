"""The mono stage: order, tail, ties, failures, deadline."""

import math

import numpy as np
import pytest

from osrerank import MonoStage
from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.stages.ordering import NO_TEXT
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import Deadline, Scores
from tests.rankings import ranking_of

BY_LENGTH = FunctionScorer(lambda _query, text: float(len(text)))


def texts(ranking):
    return [candidate.text for candidate in ranking.candidates]


def test_best_first_and_the_tail_in_its_old_order():
    ranking = MonoStage(BY_LENGTH, depth=3).rerank(ranking_of(["a", "ccc", "bb", "dddd", "e"]))
    assert texts(ranking) == ["ccc", "bb", "a", "dddd", "e"]
    assert [candidate.rank for candidate in ranking.candidates] == [1, 2, 3, 4, 5]
    assert ranking.reports[0].candidates == ranking.reports[0].inferences == 3


def test_equal_scores_keep_their_rank():
    ranking = MonoStage(FunctionScorer(lambda *_: 0.5)).rerank(ranking_of(["x", "y", "z"]))
    assert texts(ranking) == ["x", "y", "z"]


def test_trace_has_natural_values():
    candidate = MonoStage(BY_LENGTH).rerank(ranking_of(["ab"])).candidates[0]
    first_pass, mono = candidate.trace
    assert (first_pass.stage, first_pass.score, first_pass.rank) == ("first_pass", 1.0, 1)
    assert mono.parts == {"logit": 2.0, "probability": pytest.approx(1 / (1 + math.exp(-2)))}
    assert mono.score == candidate.score == 2.0
    assert mono.unit == mono.parts["probability"]


def test_a_saturated_probability_stays_below_one():
    candidate = MonoStage(FunctionScorer(lambda *_: 500.0)).rerank(ranking_of(["a"])).candidates[0]
    assert candidate.trace[-1].parts["probability"] == 1.0
    assert candidate.trace[-1].unit < 1.0


def test_candidates_that_cannot_be_scored_stay_below_the_scored_ones():
    scorer = FunctionScorer(lambda _query, text: float(len(text)), unscorable=frozenset({"bad"}))
    ranking = MonoStage(scorer, depth=5).rerank(ranking_of(["bad", None, "a", "bb", "bad", "tail"]))
    assert texts(ranking) == ["bb", "a", "bad", None, "bad", "tail"]
    assert [candidate.failure for candidate in ranking.candidates] == [
        "", "", "unscorable on purpose", NO_TEXT, "unscorable on purpose", "",
    ]  # fmt: skip
    report = ranking.reports[0]
    assert (report.applied, report.failed, report.candidates, report.inferences) == ("partial", 3, 5, 2)


def test_empty_text_is_scored():
    ranking = MonoStage(BY_LENGTH).rerank(ranking_of(["", "a"]))
    assert texts(ranking) == ["a", ""]
    assert ranking.reports[0].applied is True


def test_no_text_anywhere_is_reported():
    report = MonoStage(BY_LENGTH).rerank(ranking_of([None, None])).reports[0]
    assert (report.applied, report.reason) == (False, NO_TEXT)


def test_nothing_scorable_is_an_error():
    with pytest.raises(InferenceError, match="unscorable on purpose") as caught:
        MonoStage(FunctionScorer(unscorable=frozenset({"x"}))).rerank(ranking_of(["x", "x"]))
    assert (caught.value.stage, caught.value.model) == ("mono", "testing/function")


def test_deadline_reorders_the_prefix_that_was_reached():
    clock = ManualClock()
    scorer = FunctionScorer(lambda _query, text: float(text), seconds_per_pair=1, sleep=clock.sleep)
    ranking = MonoStage(scorer).rerank(ranking_of(list("012345")), deadline=Deadline.after_ms(4_000, clock))
    assert texts(ranking) == ["3", "2", "1", "0", "4", "5"]
    assert ranking.reports[0].applied == "partial"
    assert "after 4 of 6" in ranking.reports[0].reason


def test_deadline_counts_candidates_without_text_among_those_reached():
    class Two(FunctionScorer):
        def score(self, query, documents, tuples, *, deadline=None):
            values = np.array([1.0, 2.0, *[np.nan] * (len(tuples) - 2)], dtype=np.float32)
            return Scores(values, reached=2, inferences=2)

    ranking = MonoStage(Two()).rerank(ranking_of(["a", None, "b", "c", None]))
    assert texts(ranking) == ["b", "a", None, "c", None]
    assert [candidate.failure for candidate in ranking.candidates] == ["", "", NO_TEXT, "", ""]


def test_scores_behind_the_first_unreached_count_too():
    class Holes(FunctionScorer):
        def score(self, query, documents, tuples, *, deadline=None):
            values = np.array([1.0, np.nan, 3.0, np.nan, np.nan], dtype=np.float32)
            return Scores(values, {3: "odd"}, reached=1, inferences=1, cached=1)

    ranking = MonoStage(Holes()).rerank(ranking_of(["a", "b", "c", "d", "e"]))
    assert texts(ranking) == ["c", "a", "d", "b", "e"]
    assert [candidate.failure for candidate in ranking.candidates] == ["", "", "odd", "", ""]
    assert ranking.reports[0].applied == "partial"
    assert "after 3 of 5" in ranking.reports[0].reason


def test_deadline_before_the_first_score_is_an_error():
    class Late(FunctionScorer):
        def score(self, query, documents, tuples, *, deadline=None):
            return Scores(np.full(len(tuples), np.nan, dtype=np.float32), reached=0)

    with pytest.raises(DeadlineExceeded, match="before stage mono began"):
        MonoStage(BY_LENGTH).rerank(ranking_of(["a"]), deadline=Deadline(0.0))
    with pytest.raises(DeadlineExceeded, match="before any candidate was scored") as caught:
        MonoStage(Late()).rerank(ranking_of(["a"]))
    assert caught.value.stage == "mono"


def test_nan_names_model_and_document():
    with pytest.raises(InferenceError, match=r"testing/function.*'d1'"):
        MonoStage(FunctionScorer(lambda _query, text: math.nan if text == "b" else 1.0)).rerank(ranking_of(["a", "b"]))
