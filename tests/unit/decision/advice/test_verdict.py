"""The verdict on two settings: intervals by hand, and how often it errs on random orders."""

import numpy as np
import pytest

from osrerank.decision.advice.choose import choose
from osrerank.decision.advice.query_hits import SearchSetting
from osrerank.decision.advice.verdict import confidence_interval, decide, more_queries
from osrerank.errors import EvaluationError

DRAWS, QUERIES, HITS = 1_000, 40, 20
SETTINGS = [(depth, weight) for depth in (5, 10, 20) for weight in (0.0, 1.0, 4.0)]


def test_the_verdict_equals_a_calculation_by_hand() -> None:
    """Differences of mean .1 and deviation .2 (n - 1): t = .1 / (.2 / 4) = 2 with 15 degrees of freedom."""
    differences = 0.1 + 0.2 * np.sqrt(15 / 16) * np.array([1.0, -1.0] * 8)
    verdict = decide(np.full(16, 0.5), 0.5 + differences)
    assert verdict.difference == pytest.approx(0.1)
    assert verdict.p_value == pytest.approx(0.0639, abs=1e-4)
    assert (verdict.low, verdict.high) == pytest.approx((0.1 - 2.1314 * 0.05, 0.1 + 2.1314 * 0.05), abs=1e-4)
    assert (verdict.outcome, verdict.better, verdict.equal, verdict.worse) == ("undecided", 8, 0, 8)
    assert verdict.more_queries == 32 - 16  # (1.96 + .84)^2 * 4 = 31.4
    assert verdict.detectable == pytest.approx(2.8016 * 0.05, abs=1e-4)


@pytest.mark.parametrize(("shift", "outcome"), [(0.2, "helps"), (-0.2, "hurts")])
def test_a_large_difference_between_settings_is_decided(shift: float, outcome: str) -> None:
    draws = np.random.default_rng(1)
    before = draws.random(50)
    verdict = decide(before, before + shift + draws.normal(scale=0.3, size=50))
    assert (verdict.outcome, verdict.more_queries) == (outcome, 0)
    assert (verdict.low > 0) is (shift > 0)


def test_equal_lists_are_never_decided_and_of_equal_settings_the_cheaper_is_preferred() -> None:
    verdict = decide(np.ones(20), np.ones(20))
    assert (verdict.outcome, verdict.equal, verdict.more_queries) == ("undecided", 20, None)
    assert more_queries(np.array([1e-9, 1.0, -1.0])) is None
    with pytest.raises(EvaluationError, match="at least 10"):
        decide(np.ones(9), np.ones(9))
    values = {SearchSetting("m", "auto", depth, "replace", 0.0): np.linspace(0, 1, 20) for depth in (10, 100)}
    choice = choose([str(number) for number in range(20)], np.zeros(20), values)
    assert choice.setting.depth == 10
    assert confidence_interval(np.array([0.0, 1.0])) == pytest.approx((0.5 - 12.706 / 2, 0.5 + 12.706 / 2), abs=1e-3)


def gains_of(ranks: np.ndarray) -> np.ndarray:
    """nDCG@10 of queries whose one relevant hit has this rank."""
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)


def measured(first: np.ndarray, model: np.ndarray, depth: int, weight: float) -> np.ndarray:
    """nDCG@10 of each query; the relevant hit is the one in column 0, and scores are of first pass and model."""
    first_rank = (first > first[..., :1]).sum(axis=-1) + 1
    ranks = (first[..., None, :] > first[..., :, None]).sum(axis=-1) + 1
    inside = ranks <= depth
    keys = np.where(inside, model + weight * first / first.max(axis=-1, keepdims=True), -np.inf)
    rank = (keys > keys[..., :1]).sum(axis=-1) + 1
    return gains_of(np.where(inside[..., 0], rank, first_rank))


def noise(seed: int, effect: float, queries: int = QUERIES) -> tuple[np.ndarray, dict[SearchSetting, np.ndarray]]:
    """Values of the first pass and of each setting: both score at random, the model's of a relevant hit are higher."""
    draws = np.random.default_rng(seed)
    first, model = draws.random((queries, HITS)), draws.normal(size=(queries, HITS))
    model[:, 0] += effect
    before = gains_of((first > first[:, :1]).sum(axis=-1) + 1)
    values = {
        SearchSetting("m", "auto", depth, "linear", weight): measured(first, model, depth, weight)
        for depth, weight in SETTINGS
    }
    return before, values


@pytest.mark.slow
def test_two_random_orders_are_seldom_declared_different() -> None:
    """Of a thousand draws of both noises, at most 65 say help or hurt: of rerank=True, and of the best setting."""
    query_ids = [str(number) for number in range(QUERIES)]
    decided = {"as it is": 0, "best": 0}
    for seed in range(DRAWS):
        before, values = noise(seed, 0.0)
        decided["as it is"] += (
            decide(before, values[SearchSetting("m", "auto", 20, "linear", 0.0)]).outcome != "undecided"
        )
        decided["best"] += choose(query_ids, before, values).verdict.outcome != "undecided"
    assert max(decided.values()) <= 65, decided


@pytest.mark.long
def test_a_promised_gain_holds_on_other_queries() -> None:
    """The chosen setting's mean over 5,000 other queries is within the 95% interval in nine of ten draws or more."""
    query_ids = [str(number) for number in range(QUERIES)]
    _, ten_times_noisier = noise(10_000, 1.5, queries=5_000)
    truth = {setting: values.mean() for setting, values in ten_times_noisier.items()}
    n_kept = 0
    for seed in range(200):
        choice = choose(query_ids, *noise(seed, 1.5))
        n_kept += choice.low <= truth[choice.setting] <= choice.high
        assert choice.verdict.difference > 0
    assert n_kept >= 180
