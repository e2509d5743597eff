"""Blending with the first pass, against numbers worked by hand."""

import pytest

from osrerank import MonoStage
from osrerank.stages.interpolate import BlendStage
from osrerank.testing import FunctionScorer
from tests.rankings import ranking_of

# first-pass scores 4, 3, 2, 1; the model's 1, 3, 2; the last is below the model's depth
TEXTS = ["a", "bbb", "cc", "d"]


def blended(**options):
    ranking = MonoStage(FunctionScorer(lambda _query, text: float(len(text))), depth=3).rerank(ranking_of(TEXTS))
    return BlendStage(**options).rerank(ranking).candidates


def test_weighted_sum_of_scaled_scores():
    candidates = blended(method="weighted", weight=0.6)
    # scaled first pass 1, .5, 0 and model 0, 1, .5: a .6, bbb .7, cc .2
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx([0.7, 0.6, 0.2])
    assert [candidate.rank for candidate in candidates] == [1, 2, 3, 4]


def test_weight_0_keeps_the_order_of_the_model_and_1_restores_the_first_pass():
    assert [candidate.text for candidate in blended(weight=0.0)] == ["bbb", "cc", "a", "d"]
    assert [candidate.text for candidate in blended(weight=1.0)] == TEXTS


def test_reciprocal_rank_fusion():
    candidates = blended(method="rrf")
    # ranks in first pass and model: a 1 and 3, bbb 2 and 1, cc 3 and 2
    best = 2 / 61
    assert [candidate.text for candidate in candidates] == ["bbb", "a", "cc", "d"]
    assert [candidate.score for candidate in candidates[:3]] == pytest.approx(
        [(1 / 62 + 1 / 61) / best, (1 / 61 + 1 / 63) / best, (1 / 63 + 1 / 62) / best]
    )


def test_equal_scores_scale_to_zero():
    ranking = MonoStage(FunctionScorer(lambda *_: 1.0)).rerank(ranking_of(["x", "y"]))
    assert [c.score for c in BlendStage(weight=0.5).rerank(ranking).candidates] == pytest.approx([0.5, 0.0])


def test_empty_ranking():
    assert BlendStage().rerank(ranking_of([])).candidates == ()
