"""The option candidates in its forms, and what it does not go with."""

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError
from osrerank.options.candidates import Candidates
from osrerank.pipeline import Pipeline
from osrerank.stages.mono import MonoStage
from osrerank.testing import FunctionScorer


def test_option_forms():
    assert Rerank(candidates=True).candidates == Candidates(vectors=100)
    assert Rerank(candidates={"vectors": 20, "field": "mine"}).candidates == Candidates(20, "mine")
    assert Rerank(candidates=False).candidates is None
    assert Rerank().candidates is None


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"vectors": 0}, "candidates.vectors"),
        ({"vectors": 1001}, "candidates.vectors"),
        ({"vectors": True}, "candidates.vectors"),
        ({"field": ""}, "candidates.field"),
        ({"vector": 3}, "candidates.vector"),
        ("vectors", "candidates"),
    ],
)
def test_malformed_option_is_named(value, named):
    with pytest.raises(ConfigError) as caught:
        Rerank(candidates=value)
    assert caught.value.setting == f"rerank.{named}"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"sentences": True}, "sentences"),
        ({"pipeline": Pipeline((MonoStage(FunctionScorer()),))}, "pipeline"),
        ({"depth": "auto"}, "depth"),
    ],
)
def test_what_cannot_judge_hits_without_a_first_pass_score_is_refused(other, named):
    with pytest.raises(ConfigError) as caught:
        Rerank(candidates=True, **other)
    assert caught.value.setting == f"rerank.{named}"
