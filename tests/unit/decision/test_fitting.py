"""Calibration maps by hand: Platt scaling, isotonic regression, and thresholds that promise a precision."""

import numpy as np
import pytest

from osrerank.decision.fitting import (
    FITS,
    ScoredHits,
    calibration_error,
    fit_isotonic,
    held_out_probabilities,
    precision_lower_bound,
    precision_thresholds,
    reliability,
)
from osrerank.errors import EvaluationError
from osrerank.thresholds.platt import fit_platt


def drawn(seed: int, n: int = 20_000, scale: float = 1.5) -> ScoredHits:
    """Hits that are relevant with the probability of a logistic function of their score."""
    draws = np.random.default_rng(seed)
    scores = draws.normal(size=n)
    relevant = draws.random(n) < 1 / (1 + np.exp(-(scale * scores - 2.0)))
    return ScoredHits(scores, relevant, np.arange(n) % 50)


def test_platt_scaling_by_hand_and_a_reversed_model_is_refused() -> None:
    """Two scores: the targets are 2/3 of the relevant one and 1/3 of the other, so the logits are ±ln 2."""
    calibration = fit_platt(np.array([1.0, -1.0]), np.array([True, False]))
    assert (calibration.scale, calibration.offset) == pytest.approx((np.log(2), 0), abs=1e-6)
    with pytest.raises(EvaluationError, match="check the judgments"):
        FITS["platt"](drawn(1, scale=-1.0))


def test_isotonic_regression_by_hand() -> None:
    """Neighbours that violate the order are pooled; shares are drawn to the mean, 3/5, by the weight of one hit."""
    scores = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    calibration = fit_isotonic(
        ScoredHits(scores, np.array([False, True, False, True, True]), np.zeros(5, dtype=np.intp))
    )
    assert calibration.scores == (1.0, 2.5, 4.5)
    assert calibration.probabilities == pytest.approx((0.6 / 2, 1.6 / 3, 2.6 / 3))


@pytest.mark.parametrize("fit", FITS.values())
def test_calibrated_probabilities_match_held_out_frequencies(fit) -> None:
    scored = drawn(2)
    folds = np.array_split(np.arange(50), 5)
    probabilities = held_out_probabilities(scored, fit, folds)
    assert calibration_error(reliability(probabilities, scored.relevant)) < 0.015
    wrong = 1 / (1 + np.exp(-scored.scores))
    assert calibration_error(reliability(wrong, scored.relevant)) > 0.2


def test_the_calibration_error_by_hand() -> None:
    bins = reliability(np.array([0.1, 0.1, 0.9, 0.9]), np.array([False, True, True, True]), n_bins=2)
    assert [(bin_.hits, bin_.predicted, bin_.measured) for bin_ in bins] == [(2, 0.1, 0.5), (2, 0.9, 1.0)]
    assert calibration_error(bins) == pytest.approx((0.4 + 0.1) / 2)


def test_a_promised_precision_needs_evidence() -> None:
    assert precision_lower_bound(1, 1) == pytest.approx(1 / (1 + 1.645**2))
    assert precision_lower_bound(90, 100) == pytest.approx(0.839, abs=0.001)
    assert precision_lower_bound(9_000, 10_000) == pytest.approx(0.895, abs=0.001)


def test_a_threshold_that_promises_a_precision_has_25_hits_above_it() -> None:
    probabilities, relevant = np.linspace(0.9, 0.1, 26), np.ones(26, dtype=bool)
    assert precision_thresholds(probabilities[:24], relevant[:24]) == []
    assert [least for least, _ in precision_thresholds(probabilities, relevant)] == probabilities[[25, 24]].tolist()


def test_the_promised_precision_is_kept_on_other_queries() -> None:
    """The hits above a threshold that promises a precision have it, among hits that nothing was fitted to."""
    scored, unseen = drawn(3, 4_000), drawn(4, 40_000)
    probabilities = held_out_probabilities(scored, FITS["platt"], np.array_split(np.arange(50), 5))
    platt = fit_platt(scored.scores, scored.relevant)
    pairs = precision_thresholds(probabilities, scored.relevant)
    assert pairs == sorted(pairs, key=lambda pair: pair[0])
    for precision in (0.4, 0.5, 0.6):
        least = next(least for least, measured in pairs if measured >= precision)
        is_kept = platt.apply(unseen.scores) >= least
        assert precision - 0.02 < unseen.relevant[is_kept].mean() < precision + 0.12
