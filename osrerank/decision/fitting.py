"""Fit the map from a score to a probability of relevance, and measure how reliable the probabilities are.

The logistic map is fitted by `osrerank.thresholds.platt`, the isotonic map by pooling adjacent violators. The expected
calibration error (ECE) is that of Naeini, Cooper, Hauskrecht (AAAI 2015), with bins of equal width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from osrerank.thresholds.maps import Floats, Isotonic, ProbabilityMap
from osrerank.thresholds.platt import cross_entropy, fit_platt

N_BINS = 15
Z_95 = 1.645
"""The z-score of a one-sided 95% interval."""
MAX_THRESHOLDS = 200
"""The maximum number of thresholds. From each to the next, the number of relevant hits falls by about the same."""
MIN_HITS = 25
"""A threshold's precision is reported if at least this many hits reach the threshold."""
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ScoredHits:
    """The hits of several queries, as arrays with an element for each hit, ``(n,)``.

    Attributes:
        scores: the scores to map to probabilities.
        relevant: whether each hit is relevant.
        queries: the index of each hit's query, such as 0 for all hits of the first query.
    """

    scores: Floats
    relevant: Flags
    queries: Indices

    def select(self, is_selected: Flags) -> "ScoredHits":
        """Return the hits whose flag ``(n,)`` is true."""
        return ScoredHits(self.scores[is_selected], self.relevant[is_selected], self.queries[is_selected])


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a reliability diagram: the hits whose probability is in an interval.

    Attributes:
        low, high: the bounds of the interval.
        hits: the number of hits.
        predicted: the mean of the hits' probabilities, or 0 if there are no hits.
        measured: the fraction of hits that are relevant, or 0 if there are no hits.
    """

    low: float
    high: float
    hits: int
    predicted: float
    measured: float


def fit_isotonic(scored: ScoredHits) -> Isotonic:
    """Fit a map that never decreases, by pooling adjacent blocks that violate the order.

    A block contains hits with adjacent scores. Its probability is the fraction of its hits that are relevant. The
    overall fraction counts as one more hit of each block, so that no probability is 0 or 1.
    """
    scores, indices = np.unique(scored.scores, return_inverse=True)
    n_hits = np.bincount(indices).astype(np.float64)
    n_relevant = np.bincount(indices, weights=scored.relevant)
    hits, relevant = 0, 1  # the first two elements of a block; the third is the sum of its hits' scores
    blocks: list[Floats] = []
    for block in np.stack([n_hits, n_relevant, scores * n_hits], axis=1):
        merged = block
        # merge while the block before has at least as high a fraction, compared without a division
        while blocks and blocks[-1][relevant] * merged[hits] >= merged[relevant] * blocks[-1][hits]:
            merged = merged + blocks.pop()
        blocks.append(merged)
    block_hits, block_relevant, block_score_sums = np.array(blocks).T
    overall_fraction = float(scored.relevant.mean())
    smoothed = (block_relevant + overall_fraction) / (block_hits + 1)
    probabilities = np.maximum.accumulate(smoothed)  # smoothing changes small blocks more, which can break the order
    mean_scores, first_indices = np.unique(block_score_sums / block_hits, return_index=True)  # rounded means may tie
    return Isotonic(tuple(mean_scores.tolist()), tuple(probabilities[first_indices].tolist()))


Fit = Callable[[ScoredHits], ProbabilityMap]
FITS: dict[str, Fit] = {
    "platt": lambda scored: fit_platt(scored.scores, scored.relevant),
    "isotonic": fit_isotonic,
}
"""The function that fits each kind of map."""


def held_out_probabilities(scored: ScoredHits, fit: Fit, folds: Sequence[Indices]) -> Floats:
    """Return the probabilities ``(n,)`` of hits. For each fold, the map is fitted to the queries of all other folds.

    ``folds`` has the indices of each fold's queries. Each query is in exactly one fold.
    """
    probabilities = np.zeros(len(scored.scores))
    for fold in folds:
        is_held_out = np.isin(scored.queries, fold)
        fitted_map = fit(scored.select(~is_held_out))
        probabilities[is_held_out] = fitted_map.apply(scored.scores[is_held_out])
    return probabilities


def log_loss(probabilities: Floats, relevant: Flags) -> float:
    """Return the mean negative log-likelihood of the judgments. Lower is better."""
    return cross_entropy(probabilities, relevant.astype(np.float64)) / len(relevant)


def reliability(probabilities: Floats, relevant: Flags, n_bins: int = N_BINS) -> list[Bin]:
    """Divide hits into bins of equal width by probability, and measure the fraction of relevant hits in each bin."""
    bin_indices = np.minimum((probabilities * n_bins).astype(np.intp), n_bins - 1)
    bins = []
    for index in range(n_bins):
        is_inside = bin_indices == index
        n_hits = int(is_inside.sum())
        predicted = float(probabilities[is_inside].mean()) if n_hits else 0.0
        measured = float(relevant[is_inside].mean()) if n_hits else 0.0
        bins.append(Bin(index / n_bins, (index + 1) / n_bins, n_hits, predicted, measured))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the ECE: the mean of the bins' ``|predicted - measured|``, weighted by their hits, in [0, 1]."""
    total = sum(bin_.hits for bin_ in bins)
    return sum(bin_.hits * abs(bin_.predicted - bin_.measured) for bin_ in bins) / total


def precision_thresholds(probabilities: Floats, relevant: Flags) -> list[tuple[float, float]]:
    """Return pairs (threshold, precision of the hits with at least this probability), by rising threshold.

    The pair ``(0.6, 0.85)`` means that 85% of the hits with a probability of at least 0.6 are relevant. The precision
    is the lower bound of a 95% interval (`precision_lower_bound`). Thresholds that fewer than 25 hits reach are left
    out, because the best of many such thresholds is best by chance.

    Args:
        probabilities: the hits' probabilities ``(n,)``, from maps that were fitted to other queries.
        relevant: whether each hit is relevant ``(n,)``.
    """
    order = np.argsort(-probabilities, kind="stable")
    values, relevant_so_far = probabilities[order], np.cumsum(relevant[order])
    last_of_value = np.flatnonzero(np.append(values[1:] < values[:-1], True))  # the last hit with each probability
    # choose the thresholds at which the number of relevant hits reaches equally spaced values
    targets = np.linspace(0, relevant_so_far[-1], MAX_THRESHOLDS + 1)[1:]
    first_reaching = np.searchsorted(relevant_so_far[last_of_value], targets)  # indices in last_of_value
    indices = np.unique(last_of_value[first_reaching])
    pairs = []
    for index in indices[::-1]:
        n_hits, n_relevant = int(index) + 1, int(relevant_so_far[index])
        if n_hits >= MIN_HITS:
            pairs.append((float(values[index]), precision_lower_bound(n_relevant, n_hits)))
    return pairs


def precision_lower_bound(n_relevant: int, n_hits: int) -> float:
    """Return the lower bound of Wilson's one-sided 95% interval of a precision."""
    precision, z_squared = n_relevant / n_hits, Z_95**2
    half_width = Z_95 * math.sqrt(precision * (1 - precision) / n_hits + z_squared / (4 * n_hits * n_hits))
    return (precision + z_squared / (2 * n_hits) - half_width) / (1 + z_squared / n_hits)
