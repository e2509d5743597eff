"""Fit a logistic map from scores to probabilities of relevance (Platt 1999).

The map is fitted to Platt's smoothed targets by Newton's method (Lin, Lin, Weng: A note on Platt's probabilistic
outputs for support vector machines, 2007). The targets, (n+ + 1) / (n+ + 2) and 1 / (n- + 2), keep the scale finite
even if there are few scores, or if they separate the relevant texts from the others.
"""

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.scoring.card import logistic
from osrerank.thresholds.maps import Floats, Platt

MAX_STEPS = 100
RIDGE = 1e-9
"""Added to the Hessian's diagonal, so that Newton's step is finite."""
PROBABILITY_MARGIN = 1e-6
"""The minimum distance of a probability from 0 and 1 in a log loss."""


def fit_platt(scores: npt.NDArray[np.floating], is_relevant: npt.NDArray[np.bool_]) -> Platt:
    """Fit a logistic map to the scores of judged texts ``(n,)``, by maximum likelihood.

    Raises:
        EvaluationError: texts with higher scores are not more often relevant.
    """
    positives, negatives = int(is_relevant.sum()), int((~is_relevant).sum())
    targets = np.where(is_relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    mean, deviation = float(scores.mean()), float(scores.std()) or 1.0
    inputs = np.stack([(scores.astype(np.float64) - mean) / deviation, np.ones(len(scores))])
    weights = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    for _ in range(MAX_STEPS):
        probabilities = logistic(weights @ inputs)
        gradient = inputs @ (probabilities - targets)
        curvature = (inputs * (probabilities * (1 - probabilities))) @ inputs.T + RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient).astype(np.float64)
        weights = weights - _damp_step(step, weights, inputs, targets)
        if np.abs(step).max() < 1e-9:
            break
    if not weights[0] > 0:
        raise EvaluationError("texts with higher scores are not more often relevant; check the judgments")
    scale = float(weights[0]) / deviation
    return Platt(scale, float(weights[1]) - scale * mean)


def cross_entropy(probabilities: Floats, targets: Floats) -> float:
    """Return the sum of the log losses of probabilities ``(n,)``."""
    clipped = np.clip(probabilities, PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
    return float(-(targets * np.log(clipped) + (1 - targets) * np.log1p(-clipped)).sum())


def _damp_step(step: Floats, weights: Floats, inputs: Floats, targets: Floats) -> Floats:
    """Halve a Newton step until the loss does not rise."""
    loss = cross_entropy(logistic(weights @ inputs), targets)
    for _ in range(20):
        if cross_entropy(logistic((weights - step) @ inputs), targets) <= loss + 1e-12:
            break
        step = step / 2
    return step
