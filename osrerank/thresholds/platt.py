"""Fit a logistic function from scores to probabilities of relevance (Platt 1999).

The function is fitted by Newton's method to Platt's smoothed targets (Lin, Lin, Weng: A note on Platt's probabilistic
outputs for support vector machines, 2007). The target is (n+ + 1) / (n+ + 2) instead of 1 for each of the n+ relevant
texts, and 1 / (n- + 2) instead of 0 for each of the n- other texts. With these targets, the scale stays finite even if
there are few scores, or if all relevant texts have higher scores than all others.
"""

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.scoring.card import logistic
from osrerank.thresholds.maps import Floats, Platt

MAX_STEPS = 100
"""The maximum number of Newton steps."""
RIDGE = 1e-9
"""The number that is added to the diagonal of the Hessian, so that Newton's step is finite."""
PROBABILITY_MARGIN = 1e-6
"""The minimum distance of a probability from 0 and 1 in a log loss. Closer probabilities are clipped."""


def fit_platt(scores: npt.NDArray[np.floating], is_relevant: npt.NDArray[np.bool_]) -> Platt:
    """Fit a logistic function to the scores of judged texts, by maximum likelihood.

    Args:
        scores: the scores of n texts ``(n,)``.
        is_relevant: whether each text is judged as relevant ``(n,)``.

    Raises:
        EvaluationError: texts with higher scores are not more often relevant.
    """
    n_positive, n_negative = int(is_relevant.sum()), int((~is_relevant).sum())
    targets = np.where(is_relevant, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    mean, deviation = float(scores.mean()), float(scores.std()) or 1.0
    # the rows are the normalised scores and a constant, whose weight is the offset
    inputs = np.stack([(scores.astype(np.float64) - mean) / deviation, np.ones(len(scores))])
    weights = np.array([0.0, np.log((n_positive + 1) / (n_negative + 1))])
    for _ in range(MAX_STEPS):
        probabilities = logistic(weights @ inputs)
        gradient = inputs @ (probabilities - targets)
        hessian = (inputs * (probabilities * (1 - probabilities))) @ inputs.T + RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient).astype(np.float64)
        weights = weights - _damp_step(step, weights, inputs, targets)
        if np.abs(step).max() < 1e-9:
            break
    if not weights[0] > 0:
        raise EvaluationError("texts with higher scores are not more often relevant; check the judgments")
    scale = float(weights[0]) / deviation
    return Platt(scale, float(weights[1]) - scale * mean)


def cross_entropy(probabilities: Floats, targets: Floats) -> float:
    """Return the sum of the log losses of probabilities ``(n,)`` with the targets ``(n,)``."""
    clipped = np.clip(probabilities, PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
    return float(-(targets * np.log(clipped) + (1 - targets) * np.log1p(-clipped)).sum())


def _damp_step(step: Floats, weights: Floats, inputs: Floats, targets: Floats) -> Floats:
    """Halve a Newton step until the loss does not rise. Return the step, which is subtracted from the weights."""
    loss = cross_entropy(logistic(weights @ inputs), targets)
    for _ in range(20):
        if cross_entropy(logistic((weights - step) @ inputs), targets) <= loss + 1e-12:
            break
        step = step / 2
    return step
