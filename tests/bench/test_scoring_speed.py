"""Pairs a second of the shipped model on this machine: ``pytest -m bench tests/bench``."""

import pytest

from osrerank.scoring.registry import load_scorer
from osrerank.settings import DEFAULT_MODEL

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("words", [50, 250])
def test_pairs_of_one_length(benchmark: object, words: int) -> None:
    scorer = load_scorer(DEFAULT_MODEL)
    documents = [" ".join(["pressure"] * words)] * 100
    tuples = [(index,) for index in range(len(documents))]
    scores = benchmark.pedantic(
        scorer.score, args=("what causes low pressure", documents, tuples), rounds=5, warmup_rounds=1
    )
    benchmark.extra_info["pairs_per_s"] = len(documents) / benchmark.stats.stats.median
    assert not scores.failures
