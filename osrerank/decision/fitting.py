"""Fit the map from a score to a probability of relevance, and measure how reliable the probabilities are.

Platt's smoothed targets, and Newton's method for them as Lin, Lin, Weng: A note on Platt's probabilistic outputs for
support vector machines, 2007; pool adjacent violators for isotonic regression; the expected calibration error (ECE)
of Naeini, Cooper, Hauskrecht, AAAI 2015, with bins of equal width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.thresholds.maps import Floats, Isotonic, Platt, ProbabilityMap

BINS = 15
STEPS = 100
NINETY_FIVE = 1.645
"""Standard errors between a mean and the lower end of its one-sided 95% interval."""
MIN_HITS = 25
MINIMUM = 1e-6
"""Minimum distance of probabilities from 0 and 1 in a log loss."""
Flags = npt.NDArray[np.bool_]
Groups = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ScoredHits:
    """Hits of several queries with their scores and judgments, ``(n,)`` each.

    Attributes:
        scores: the scores that are mapped to probabilities.
        relevant: whether each hit is relevant.
        queries: the number of each hit's query.
    """

    scores: Floats
    relevant: Flags
    queries: Groups

    def where(self, chosen: Flags) -> "ScoredHits":
        """Return the hits for which ``chosen`` ``(n,)`` is true."""
        return ScoredHits(self.scores[chosen], self.relevant[chosen], self.queries[chosen])


@dataclass(frozen=True, slots=True)
class Bin:
    """The hits whose probability lies in an interval.

    Attributes:
        low, high: the interval.
        hits: the number of hits in the interval.
        predicted: the mean of the hits' probabilities; 0 without hits.
        measured: the share of the hits that is relevant; 0 without hits.
    """

    low: float
    high: float
    hits: int
    predicted: float
    measured: float


def fit_platt(scored: ScoredHits) -> Platt:
    """Fit a logistic function.

    Raises:
        EvaluationError: hits with higher scores are not relevant more often.
    """
    scores, relevant = scored.scores, scored.relevant
    positives = int(relevant.sum())
    negatives = len(relevant) - positives
    targets = np.where(relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    centre, spread = float(scores.mean()), float(scores.std()) or 1.0
    inputs = np.stack([(scores - centre) / spread, np.ones(len(scores))])
    weights = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    for _ in range(STEPS):
        probabilities = _logistic(weights @ inputs)
        gradient = inputs @ (probabilities - targets)
        curvature = (inputs * (probabilities * (1 - probabilities))) @ inputs.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - _damped(step, weights, inputs, targets)
        if np.abs(step).max() < 1e-9:
            break
    if not weights[0] > 0:
        raise EvaluationError("higher scores are not relevant more often: check the judgments")
    scale = float(weights[0]) / spread
    return Platt(scale, float(weights[1]) - scale * centre)


def _damped(step: Floats, weights: Floats, inputs: Floats, targets: Floats) -> Floats:
    """Return a Newton step, halved until the loss does not rise."""
    loss = _cross_entropy(_logistic(weights @ inputs), targets)
    for _ in range(20):
        if _cross_entropy(_logistic((weights - step) @ inputs), targets) <= loss + 1e-12:
            break
        step = step / 2
    return step


def fit_isotonic(scored: ScoredHits) -> Isotonic:
    """Fit a map that never decreases, by pooling adjacent blocks that violate the order.

    Each block's share of relevant hits is smoothed: one hit with the overall share is added to the block, so that no
    probability is 0 or 1.
    """
    values, indices = np.unique(scored.scores, return_inverse=True)
    counts = np.bincount(indices).astype(np.float64)
    positives = np.bincount(indices, weights=scored.relevant)
    blocks: list[tuple[float, float, float]] = []  # hits, relevant ones, sum of scores
    for block in zip(counts, positives, values * counts, strict=True):
        hits, relevant, total = block
        while blocks and blocks[-1][1] * hits >= relevant * blocks[-1][0]:
            previous = blocks.pop()
            hits, relevant, total = hits + previous[0], relevant + previous[1], total + previous[2]
        blocks.append((hits, relevant, total))
    table = np.array(blocks)
    prior = float(scored.relevant.mean())
    shares = np.maximum.accumulate((table[:, 1] + prior) / (table[:, 0] + 1))
    means, last_indices = np.unique(table[:, 2] / table[:, 0], return_index=True)
    return Isotonic(tuple(means.tolist()), tuple(shares[last_indices].tolist()))


FITS: dict[str, Callable[[ScoredHits], ProbabilityMap]] = {"platt": fit_platt, "isotonic": fit_isotonic}


def held_out(scored: ScoredHits, fit: Callable[[ScoredHits], ProbabilityMap], folds: Sequence[Groups]) -> Floats:
    """Return each hit's probability from a map that was fitted to the other folds' queries.

    Args:
        scored: all hits.
        fit: fits a map.
        folds: the query numbers of each fold; each query is in exactly one fold.
    """
    probabilities = np.zeros(len(scored.scores))
    for fold in folds:
        out = np.isin(scored.queries, fold)
        probabilities[out] = fit(scored.where(~out)).of(scored.scores[out])
    return probabilities


def log_loss(probabilities: Floats, relevant: Flags) -> float:
    """Return the mean negative log-likelihood; lower is better."""
    return _cross_entropy(probabilities, relevant.astype(np.float64)) / len(relevant)


def reliability(probabilities: Floats, relevant: Flags, bins: int = BINS) -> list[Bin]:
    """Return how often hits are relevant in each of ``bins`` equally wide intervals of their probability."""
    numbers = np.minimum((probabilities * bins).astype(np.intp), bins - 1)
    reliability_bins = []
    for number in range(bins):
        inside = numbers == number
        hits = int(inside.sum())
        mean_probability = float(probabilities[inside].mean()) if hits else 0.0
        measured = float(relevant[inside].mean()) if hits else 0.0
        reliability_bins.append(Bin(number / bins, (number + 1) / bins, hits, mean_probability, measured))
    return reliability_bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the ECE: the mean difference between probability and relevance over the hits, in [0, 1]."""
    total = sum(bin_.hits for bin_ in bins)
    return sum(bin_.hits * abs(bin_.predicted - bin_.measured) for bin_ in bins) / total


def precisions(probabilities: Floats, relevant: Flags, max_thresholds: int = 200) -> list[tuple[float, float]]:
    """Return probability thresholds in rising order, each with the precision `promised` for the hits at or above it.

    Thresholds with fewer than 25 hits are left out: with so few hits, the best of many thresholds is the best by luck.

    Args:
        probabilities: each hit's probability ``(n,)``, from a map that was fitted to other queries.
        relevant: whether each hit is relevant ``(n,)``.
        max_thresholds: the maximum number of thresholds to return; they divide the relevant hits into equal shares.
    """
    order = np.argsort(-probabilities, kind="stable")
    values, relevant_so_far = probabilities[order], np.cumsum(relevant[order])
    last = np.flatnonzero(np.append(values[1:] < values[:-1], True))
    targets = np.linspace(0, relevant_so_far[-1], max_thresholds + 1)[1:]
    selected = np.unique(last[np.searchsorted(relevant_so_far[last], targets)])
    return [
        (float(values[index]), promised(int(relevant_so_far[index]), int(index) + 1))
        for index in selected[::-1]
        if index + 1 >= MIN_HITS
    ]


def promised(relevant: int, hits: int) -> float:
    """Return a precision that can be promised: the lower end of Wilson's one-sided 95% interval.

    With few hits, it is far below the measured precision.
    """
    share, z2 = relevant / hits, NINETY_FIVE**2
    half = NINETY_FIVE * math.sqrt(share * (1 - share) / hits + z2 / (4 * hits * hits))
    return (share + z2 / (2 * hits) - half) / (1 + z2 / hits)


def _logistic(values: Floats) -> Any:
    return 1 / (1 + np.exp(-np.clip(values, -700, 700)))


def _cross_entropy(probabilities: Floats, targets: Floats) -> float:
    inside = np.clip(probabilities, MINIMUM, 1 - MINIMUM)
    return float(-(targets * np.log(inside) + (1 - targets) * np.log1p(-inside)).sum())
