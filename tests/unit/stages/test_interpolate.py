"""Blending with the first pass, against numbers worked by hand."""

import math
from dataclasses import replace

import pytest

from osrerank import MonoStage
from osrerank.stages.interpolate import BlendStage
from osrerank.testing import FunctionScorer
from osrerank.types import Ranking
from tests.rankings import BY_LENGTH, ranking_of

# first-pass scores 4, 3, 2, 1; the model's 1, 3, 2; the last is below the model's depth
TEXTS = ["a", "bbb", "cc", "d"]


def blended(**options):
    ranking = MonoStage(BY_LENGTH, depth=3).rerank(ranking_of(TEXTS))
    return BlendStage(**options).rerank(ranking).candidates


def test_weighted_sum_of_scaled_scores():
    candidates = blended(method="weighted", weight=0.6)
    # scaled first pass 1, .5, 0 and model 0, 1, .5: a .6, bbb .7, cc .2
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx([0.7, 0.6, 0.2])
    assert [candidate.rank for candidate in candidates] == [1, 2, 3, 4]


def test_linear_sum_with_the_share_of_the_best_first_pass_score():
    candidates = blended(method="linear", weight=4.0)
    # model 1, 3, 2 plus 4 * (4/4, 3/4, 2/4): a 5, bbb 6, cc 4
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx([6.0, 5.0, 4.0])
    units = [candidate.trace[-1].unit for candidate in candidates[:3]]
    assert units == pytest.approx([1 / (1 + math.exp(4 - key)) for key in (6, 5, 4)])


def test_linear_sum_does_not_see_a_factor_in_the_first_pass():
    def with_factor(factor):
        ranking = ranking_of(TEXTS)
        candidates = [replace(c, trace=(replace(c.trace[0], score=c.score * factor),)) for c in ranking.candidates]
        ranking = MonoStage(BY_LENGTH).rerank(Ranking(ranking.query, tuple(candidates)))
        return [c.score for c in BlendStage("linear", 4.0).rerank(ranking).candidates]

    assert with_factor(1.0) == pytest.approx(with_factor(2.2))


def test_linear_sum_without_first_pass_scores_is_the_model():
    ranking = MonoStage(BY_LENGTH).rerank(ranking_of(TEXTS))
    silent = [replace(c, trace=(replace(c.trace[0], score=0.0), *c.trace[1:])) for c in ranking.candidates]
    blended = BlendStage("linear", 4.0).rerank(Ranking(ranking.query, tuple(silent)))
    assert [c.score for c in blended.candidates] == [3.0, 2.0, 1.0, 1.0]


def test_weight_0_keeps_the_order_of_the_model_and_1_restores_the_first_pass():
    assert [candidate.text for candidate in blended(method="weighted", weight=0.0)] == ["bbb", "cc", "a", "d"]
    assert [candidate.text for candidate in blended(method="weighted", weight=1.0)] == TEXTS


def test_equal_scores_scale_to_zero_and_nothing_to_nothing():
    ranking = MonoStage(FunctionScorer(lambda *_: 1.0)).rerank(ranking_of(["x", "y"]))
    assert [c.score for c in BlendStage("weighted", weight=0.5).rerank(ranking).candidates] == pytest.approx([0.5, 0.0])
    assert BlendStage("rrf").rerank(ranking_of([])).candidates == ()


def test_reciprocal_rank_fusion():
    candidates = blended(method="rrf")
    # ranks in first pass and model: a 1 and 3, bbb 2 and 1, cc 3 and 2
    best = 2 / 61
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx(
        [(1 / 62 + 1 / 61) / best, (1 / 61 + 1 / 63) / best, (1 / 63 + 1 / 62) / best]
    )
