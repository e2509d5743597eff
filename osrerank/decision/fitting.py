"""Fit the map from a score to a probability of relevance, and measure how far it can be believed.

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
LEAST_HITS = 25
LEAST = 1e-6
"""Probabilities are kept this far from 0 and 1 in a log loss."""
Flags = npt.NDArray[np.bool_]
Groups = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ScoredHits:
    """Hits of several queries with their scores and judgments, ``(n,)`` each.

    Attributes:
        scores: what is mapped to a probability.
        relevant: whether the hit is.
        queries: number of the hit's query.
    """

    scores: Floats
    relevant: Flags
    queries: Groups

    def where(self, chosen: Flags) -> "ScoredHits":
        """Return some of the hits."""
        return ScoredHits(self.scores[chosen], self.relevant[chosen], self.queries[chosen])


@dataclass(frozen=True, slots=True)
class Bin:
    """The hits whose probability is in an interval.

    Attributes:
        low, high: the interval.
        hits: how many there are.
        said: their mean probability; 0 without hits.
        measured: the share of them that is relevant; 0 without hits.
    """

    low: float
    high: float
    hits: int
    said: float
    measured: float


def fit_platt(scored: ScoredHits) -> Platt:
    """Fit a logistic function.

    Raises:
        EvaluationError: higher scores are not more often relevant.
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
    """Fit a map that never decreases, by pooling neighbours that violate the order.

    Each block's share of relevant hits is drawn towards the share of all hits by the weight of one hit, so that no
    probability is 0 or 1.
    """
    values, indices = np.unique(scored.scores, return_inverse=True)
    counts = np.bincount(indices).astype(np.float64)
    positives = np.bincount(indices, weights=scored.relevant)
    blocks: list[tuple[float, float, float]] = []  # hits, relevant ones, sum of scores
    for block in zip(counts, positives, values * counts, strict=True):
        hits, relevant, total = block
        while blocks and blocks[-1][1] * hits >= relevant * blocks[-1][0]:
            before = blocks.pop()
            hits, relevant, total = hits + before[0], relevant + before[1], total + before[2]
        blocks.append((hits, relevant, total))
    table = np.array(blocks)
    prior = float(scored.relevant.mean())
    shares = np.maximum.accumulate((table[:, 1] + prior) / (table[:, 0] + 1))
    means, kept = np.unique(table[:, 2] / table[:, 0], return_index=True)
    return Isotonic(tuple(means.tolist()), tuple(shares[kept].tolist()))


FITS: dict[str, Callable[[ScoredHits], ProbabilityMap]] = {"platt": fit_platt, "isotonic": fit_isotonic}


def held_out(scored: ScoredHits, fit: Callable[[ScoredHits], ProbabilityMap], folds: Sequence[Groups]) -> Floats:
    """Return each hit's probability by a map that was fitted without the hit's fold of queries.

    Args:
        scored: all hits.
        fit: fits a map.
        folds: the query numbers of each fold; all queries are in one.
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
    """Return how often hits are relevant in each interval of their probability, intervals of equal width."""
    numbers = np.minimum((probabilities * bins).astype(np.intp), bins - 1)
    found = []
    for number in range(bins):
        inside = numbers == number
        hits = int(inside.sum())
        said = float(probabilities[inside].mean()) if hits else 0.0
        measured = float(relevant[inside].mean()) if hits else 0.0
        found.append(Bin(number / bins, (number + 1) / bins, hits, said, measured))
    return found


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the ECE: the mean difference between probability and relevance over the hits, in [0, 1]."""
    total = sum(one.hits for one in bins)
    return sum(one.hits * abs(one.said - one.measured) for one in bins) / total


def precisions(probabilities: Floats, relevant: Flags, most: int = 200) -> list[tuple[float, float]]:
    """Return thresholds by rising probability, each with the precision `promised` of the hits at or above it.

    There are none with fewer than 25 hits: among so few, the best of many thresholds would be a lucky one.

    Args:
        probabilities: ``(n,)``, of maps that were fitted to other queries.
        relevant: ``(n,)``.
        most: thresholds, at equal shares of the relevant hits.
    """
    order = np.argsort(-probabilities, kind="stable")
    values, found = probabilities[order], np.cumsum(relevant[order])
    last = np.flatnonzero(np.append(values[1:] < values[:-1], True))
    targets = np.linspace(0, found[-1], most + 1)[1:]
    chosen = np.unique(last[np.searchsorted(found[last], targets)])
    return [
        (float(values[index]), promised(int(found[index]), int(index) + 1))
        for index in chosen[::-1]
        if index + 1 >= LEAST_HITS
    ]


def promised(relevant: int, hits: int) -> float:
    """Return a precision that one may promise: the lower end of Wilson's one-sided 95% interval of what was measured.

    It is far below the measured one where few hits were seen.
    """
    share, z2 = relevant / hits, NINETY_FIVE**2
    half = NINETY_FIVE * math.sqrt(share * (1 - share) / hits + z2 / (4 * hits * hits))
    return (share + z2 / (2 * hits) - half) / (1 + z2 / hits)


def _logistic(values: Floats) -> Any:
    return 1 / (1 + np.exp(-np.clip(values, -700, 700)))


def _cross_entropy(probabilities: Floats, targets: Floats) -> float:
    inside = np.clip(probabilities, LEAST, 1 - LEAST)
    return float(-(targets * np.log(inside) + (1 - targets) * np.log1p(-inside)).sum())
