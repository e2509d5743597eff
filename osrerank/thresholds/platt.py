"""Fit a logistic function from scores to probabilities of relevance (Platt 1999).

The function is fitted by Newton's method to Platt's smoothed targets (Lin, Lin, Weng: A note on Platt's probabilistic
outputs for support vector machines, 2007). With r relevant texts and s others, the target is ``(r + 1) / (r + 2)`` for
a relevant text instead of 1, and ``1 / (s + 2)`` for another text instead of 0. With these targets, the scale stays
finite even if there are few scores, or if all relevant texts have higher scores than all others.
"""

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.scoring.card import logistic
from osrerank.thresholds.maps import Floats, Platt

MAX_STEPS = 100
"""The maximum number of Newton steps."""
MIN_CHANGE = 1e-9
"""The change of the weights in a step below which they count as final."""
MAX_HALVINGS = 20
"""The maximum number of times that a step is halved because it raises the loss."""
ROUNDING_TOLERANCE = 1e-12
"""The rise of the loss that is allowed, because it can come from rounding."""
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
    n_relevant = int(is_relevant.sum())
    n_others = len(is_relevant) - n_relevant
    targets = np.where(is_relevant, (n_relevant + 1) / (n_relevant + 2), 1 / (n_others + 2))
    mean = float(scores.mean())
    deviation = float(scores.std()) or 1.0  # 1 if all scores are equal
    # the rows are the normalised scores and a constant, whose weight is the offset
    inputs = np.stack([(scores.astype(np.float64) - mean) / deviation, np.ones(len(scores))])
    weights = np.array([0.0, np.log((n_relevant + 1) / (n_others + 1))])  # begin with equal probabilities
    for _ in range(MAX_STEPS):
        probabilities = logistic(weights @ inputs)
        gradient = inputs @ (probabilities - targets)
        hessian = (inputs * (probabilities * (1 - probabilities))) @ inputs.T + RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient).astype(np.float64)
        weights = weights - _damp_step(step, weights, inputs, targets)
        if np.abs(step).max() < MIN_CHANGE:
            break
    if not weights[0] > 0:  # also if it is NaN
        raise EvaluationError("texts with higher scores are not more often relevant; check the judgments")
    scale = float(weights[0]) / deviation
    return Platt(scale, float(weights[1]) - scale * mean)


def cross_entropy(probabilities: Floats, targets: Floats) -> float:
    """Return the sum of the log losses of probabilities ``(n,)`` against targets ``(n,)``."""
    clipped = np.clip(probabilities, PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
    return float(-(targets * np.log(clipped) + (1 - targets) * np.log1p(-clipped)).sum())


def _damp_step(step: Floats, weights: Floats, inputs: Floats, targets: Floats) -> Floats:
    """Halve a Newton step until subtracting it from the weights does not raise the loss. Return the step."""
    loss = cross_entropy(logistic(weights @ inputs), targets)
    for _ in range(MAX_HALVINGS):
        if cross_entropy(logistic((weights - step) @ inputs), targets) <= loss + ROUNDING_TOLERANCE:
            break
        step = step / 2
    return step
