"""The mono stage: order, tail, ties, failures, deadline; and blending with the first pass by hand."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osrerank import MonoStage, Pipeline
from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.response import compute_final_score, make_candidates, parse_hits
from osrerank.stages.interpolate import BlendStage
from osrerank.stages.ordering import NO_TEXT
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import Deadline, Query, Ranking, Scores
from osrerank.types.values import BLANK_TEXT
from tests.rankings import BY_LENGTH, ranking_of, response_of


def texts(ranking):
    return [candidate.text for candidate in ranking.candidates]


def test_mono_puts_the_best_first_and_keeps_the_tail():
    ranking = MonoStage(BY_LENGTH, depth=3).rerank(ranking_of(["a", "ccc", "bb", "dddd", "e"]))
    assert texts(ranking) == ["ccc", "bb", "a", "dddd", "e"]
    assert [candidate.rank for candidate in ranking.candidates] == [1, 2, 3, 4, 5]
    assert ranking.reports[0].candidates == ranking.reports[0].inferences == 3


def test_candidates_with_equal_mono_scores_keep_their_rank():
    ranking = MonoStage(FunctionScorer(lambda *_: 0.5)).rerank(ranking_of(["x", "y", "z"]))
    assert texts(ranking) == ["x", "y", "z"]


def test_the_mono_trace_has_logit_and_probability():
    candidate = MonoStage(BY_LENGTH).rerank(ranking_of(["ab"])).candidates[0]
    first_pass, mono = candidate.trace
    assert (first_pass.stage, first_pass.score, first_pass.rank) == ("first_pass", 1.0, 1)
    assert mono.parts == {"logit": 2.0, "probability": pytest.approx(1 / (1 + math.exp(-2)))}
    assert mono.score == candidate.score == 2.0
    assert mono.unit == mono.parts["probability"]
    saturated = MonoStage(FunctionScorer(lambda *_: 500.0)).rerank(ranking_of(["a"])).candidates[0].trace[-1]
    assert saturated.parts["probability"] == 1.0 > saturated.unit


def test_candidates_that_cannot_be_scored_stay_below_the_scored_ones():
    scorer = FunctionScorer(lambda _query, text: float(len(text)), unscorable=frozenset({"bad"}))
    ranking = MonoStage(scorer, depth=5).rerank(ranking_of(["bad", None, "a", "bb", "bad", "tail"]))
    assert texts(ranking) == ["bb", "a", "bad", None, "bad", "tail"]
    odd = "unscorable on purpose"
    assert [candidate.failure for candidate in ranking.candidates] == ["", "", odd, NO_TEXT, odd, ""]
    report = ranking.reports[0]
    assert (report.applied, report.failed, report.candidates, report.inferences) == ("partial", 3, 5, 2)


@pytest.mark.parametrize("blank", ["", "  ", "...", "\n—", "\U0001f600", "$ = _"])
def test_a_blank_text_is_not_scored_and_stays_below(blank):
    ranking = MonoStage(FunctionScorer(lambda _query, text: -len(text))).rerank(ranking_of([blank, "a", "½"]))
    assert texts(ranking) == ["a", "½", blank]
    assert ranking.candidates[-1].failure == BLANK_TEXT
    report = ranking.reports[0]
    assert (report.applied, report.failed, report.inferences) == (True, 1, 2)


@pytest.mark.parametrize(
    ("found", "reason"), [(["", "..."], "the texts of all candidates are blank"), ([None, None], NO_TEXT)]
)
def test_candidates_without_any_text_are_reported(found, reason):
    report = MonoStage(BY_LENGTH).rerank(ranking_of(found)).reports[0]
    assert (report.applied, report.reason) == (False, reason)


def test_a_mono_stage_without_scorable_documents_is_an_error():
    with pytest.raises(InferenceError, match="unscorable on purpose") as caught:
        MonoStage(FunctionScorer(unscorable=frozenset({"x"}))).rerank(ranking_of(["x", "x"]))
    assert (caught.value.stage, caught.value.model) == ("mono", "testing/function")


def test_a_deadline_reorders_only_the_scored_prefix():
    clock = ManualClock()
    scorer = FunctionScorer(lambda _query, text: float(text), seconds_per_pair=1, sleep=clock.sleep)
    ranking = MonoStage(scorer).rerank(ranking_of(list("012345")), deadline=Deadline.after_ms(4_000, clock))
    assert texts(ranking) == ["3", "2", "1", "0", "4", "5"]
    assert ranking.reports[0].applied == "partial"
    assert "after 4 of 6" in ranking.reports[0].reason


def test_candidates_without_text_count_as_reached_before_a_deadline():
    clock = ManualClock()
    scorer = FunctionScorer(lambda _query, text: ord(text), seconds_per_pair=1, sleep=clock.sleep)
    ranking = MonoStage(scorer).rerank(
        ranking_of(["a", None, "b", "c", None]), deadline=Deadline.after_ms(2_000, clock)
    )
    assert texts(ranking) == ["b", "a", None, "c", None]
    assert [candidate.failure for candidate in ranking.candidates] == ["", "", NO_TEXT, "", ""]


class Holes(FunctionScorer):
    """Scores what it is told to; what is NaN was not reached, and the text "odd" cannot be scored."""

    values = (1.0, 2.0, np.nan, 9.0, np.nan)

    def score(self, query, documents, tuples, *, deadline=None):
        values = np.array(self.values, dtype=np.float32)
        failures = {number: "odd" for number, text in enumerate(documents) if text == "odd"}
        reached = next(number for number, text in enumerate(documents) if np.isnan(values[number]) and text != "odd")
        return Scores(values, failures, reached, inferences=2, cached=1)


def test_candidates_after_the_first_unscored_keep_their_rank():
    ranking = MonoStage(Holes()).rerank(ranking_of(["a", "b", "c", "d", "odd"]))
    assert texts(ranking) == ["b", "a", "c", "d", "odd"]
    assert [len(candidate.trace) for candidate in ranking.candidates] == [2, 2, 1, 1, 1]
    assert [candidate.failure for candidate in ranking.candidates] == [""] * 5
    assert ranking.reports[0].applied == "partial"
    assert ranking.reports[0].reason == "the deadline passed after 2 of 5 candidates"


@pytest.mark.parametrize("first", ["a", None])
def test_without_a_score_for_the_first_candidate_nothing_is_reordered(first):
    class Late(Holes):
        values = (np.nan, 2.0, 3.0, 9.0, np.nan)

    with pytest.raises(DeadlineExceeded, match="before any candidate was scored") as caught:
        MonoStage(Late()).rerank(ranking_of([first, "a", "b", "c", "d", "e"][first is not None :]))
    assert caught.value.stage == "mono"
    with pytest.raises(DeadlineExceeded, match='before the stage "mono" began'):
        MonoStage(BY_LENGTH).rerank(ranking_of(["a"]), deadline=Deadline(0.0))


def test_a_nan_score_names_model_and_document():
    with pytest.raises(InferenceError, match=r"testing/function.*'d1'"):
        MonoStage(FunctionScorer(lambda _query, text: math.nan if text == "b" else 1.0)).rerank(ranking_of(["a", "b"]))


# first-pass scores 4, 3, 2, 1; the model's 1, 3, 2; the last is below the model's depth
VECTORS_BLEND = ["a", "bbb", "cc", "d"]


def blended(**options):
    ranking = MonoStage(BY_LENGTH, depth=3).rerank(ranking_of(VECTORS_BLEND))
    return BlendStage(**options).rerank(ranking).candidates


def test_the_linear_blend_divides_by_the_best_first_pass_score():
    candidates = blended(method="linear", weight=4.0)
    # model 1, 3, 2 plus 4 * (4/4, 3/4, 2/4): a 5, bbb 6, cc 4
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx([6.0, 5.0, 4.0])
    units = [candidate.trace[-1].unit for candidate in candidates[:3]]
    assert units == pytest.approx([1 / (1 + math.exp(4 - key)) for key in (6, 5, 4)])


def test_a_factor_in_first_pass_scores_does_not_change_the_linear_blend():
    def with_factor(factor):
        ranking = ranking_of(VECTORS_BLEND)
        candidates = [c._replace(trace=(c.trace[0]._replace(score=c.score * factor),)) for c in ranking.candidates]
        ranking = MonoStage(BY_LENGTH).rerank(Ranking(ranking.query, tuple(candidates)))
        return [c.score for c in BlendStage("linear", 4.0).rerank(ranking).candidates]

    assert with_factor(1.0) == pytest.approx(with_factor(2.2))


def test_the_linear_blend_without_first_pass_scores_is_the_models_order():
    ranking = MonoStage(BY_LENGTH).rerank(ranking_of(VECTORS_BLEND))
    silent = [c._replace(trace=(c.trace[0]._replace(score=0.0), *c.trace[1:])) for c in ranking.candidates]
    blended = BlendStage("linear", 4.0).rerank(Ranking(ranking.query, tuple(silent)))
    assert [c.score for c in blended.candidates] == [3.0, 2.0, 1.0, 1.0]


def test_weight_0_gives_the_models_order_and_a_large_weight_the_first_pass():
    assert [candidate.text for candidate in blended(method="linear", weight=0.0)] == ["bbb", "cc", "a", "d"]
    assert [candidate.text for candidate in blended(method="linear", weight=99.0)] == VECTORS_BLEND


def test_blending_an_empty_ranking_returns_it():
    assert BlendStage("rrf").rerank(ranking_of([])).candidates == ()


def test_reciprocal_rank_fusion_by_hand():
    candidates = blended(method="rrf")
    # ranks in first pass and model: a 1 and 3, bbb 2 and 1, cc 3 and 2
    best = 2 / 61
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx(
        [(1 / 62 + 1 / 61) / best, (1 / 61 + 1 / 63) / best, (1 / 63 + 1 / 62) / best]
    )


@given(
    st.lists(st.tuples(st.floats(-500, 500), st.floats(-1e300, 1e300)), min_size=1, max_size=6),
    st.sampled_from(["linear", "rrf", "earlier_stage"]),
    st.floats(0, 1),
    st.integers(1, 6),
)
@example([(0.0, 5e-324)], "linear", 1.0, 1)
def test_final_scores_of_every_blend_never_increase_down_the_list(scores, method, weight, depth):
    response = response_of([str(logit) for logit, _ in scores])
    for hit, score in zip(parse_hits(response), sorted([score for _, score in scores], reverse=True), strict=True):
        hit["_score"] = score
    stages = MonoStage(FunctionScorer(lambda _query, text: float(text)), depth), BlendStage(method, weight)
    ranking = Pipeline(stages).rerank(Ranking(Query("q", "low"), make_candidates(parse_hits(response), ["text"])))
    finals = [compute_final_score(candidate) for candidate in ranking.candidates]
    assert finals == sorted(finals, reverse=True)
    assert [math.floor(final) for final in finals] == [int(position < depth) for position in range(len(scores))]
