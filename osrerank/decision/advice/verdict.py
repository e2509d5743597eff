"""Decide by a paired t-test whether reranking helps, and estimate how many queries a decision needs.

The estimate is for a two-sided test with a power of 80%, by the normal approximation (Sakai: Statistical reform in
information retrieval?, SIGIR Forum 2014).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import EvaluationError
from osrerank.evaluation.significance import paired_t_test

ALPHA = 0.05
"""The p-value below which a difference is significant."""
POWER = 0.8
"""The probability with which the estimated number of queries shows a difference."""
MIN_QUERIES = 10
"""The minimum number of judged queries for a test."""
MAX_QUERIES = 1_000_000
"""The maximum total number of queries that `more_queries` considers."""
TOLERANCE = 1e-12
"""Differences up to this size are rounding errors."""
Outcome = Literal["helps", "hurts", "undecided"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether reranking helps on a sample of queries, with the numbers of the test.

    Attributes:
        outcome: ``helps`` or ``hurts`` if the p-value is below .05, otherwise ``undecided``.
        queries: the number of queries.
        before: the mean of the measure in the first pass.
        after: the mean of the measure after reranking.
        difference: the mean of after minus before.
        low, high: the bounds of the difference's 95% confidence interval.
        p_value: the two-tailed p-value of the test.
        better, equal, worse: the numbers of queries for which the measure rises, stays equal or falls.
        more_queries: how many more queries are needed for a decision with a power of 80%, if the true difference is
            the measured one. 0 means that the test was significant, and None that over a million would be needed.
        detectable: the smallest difference that this number of queries detects with a power of 80%.
    """

    outcome: Outcome
    queries: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    p_value: float
    better: int
    equal: int
    worse: int
    more_queries: int | None
    detectable: float


def decide(before: Floats, after: Floats) -> Verdict:
    """Test by a paired t-test whether reranked lists are better or worse than the first pass.

    Args:
        before: the measure of each query in the first pass ``(queries,)``; higher is better.
        after: the measure of each query after reranking ``(queries,)``.

    Raises:
        EvaluationError: there are fewer than ten queries.
    """
    if len(before) < MIN_QUERIES:
        raise too_few_queries_error(len(before))
    differences = after - before
    p_value = paired_t_test(differences)
    mean = float(differences.mean())
    low, high = confidence_interval(differences)
    is_decided = p_value < ALPHA
    return Verdict(
        outcome=outcome_of(p_value, mean),
        queries=len(before),
        before=float(before.mean()),
        after=float(after.mean()),
        difference=mean,
        low=low,
        high=high,
        p_value=p_value,
        better=int((differences > TOLERANCE).sum()),
        equal=int((np.abs(differences) <= TOLERANCE).sum()),
        worse=int((differences < -TOLERANCE).sum()),
        more_queries=0 if is_decided else more_queries(differences),
        detectable=_detectable_z() * float(differences.std(ddof=1)) / math.sqrt(len(before)),
    )


def outcome_of(p_value: float, difference: float) -> Outcome:
    """Return the outcome of a test with this p-value and mean difference."""
    if p_value >= ALPHA:
        return "undecided"
    return "helps" if difference > 0 else "hurts"


def too_few_queries_error(n_queries: int) -> EvaluationError:
    """Return the error for too few judged queries."""
    return EvaluationError(f"{n_queries} judged queries are too few for a test; judge at least {MIN_QUERIES}")


def confidence_interval(values: Floats) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean of values ``(n,)`` by Student's t, for n of at least 2."""
    half_width = t_quantile(len(values)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return mean - half_width, mean + half_width


def t_quantile(count: int) -> float:
    """Return half the width of a mean's 95% confidence interval, in standard errors: about 1.98 for 100 values."""
    stats = require("scipy.stats", extra="eval")
    return float(stats.t.ppf(1 - ALPHA / 2, count - 1))


def more_queries(differences: Floats) -> int | None:
    """Return how many more queries a decision needs, if mean and standard deviation stay the same.

    None means that over a million queries would be needed.
    """
    mean, deviation = abs(float(differences.mean())), float(differences.std(ddof=1))
    if mean <= TOLERANCE:
        return None
    total = math.ceil((_detectable_z() * deviation / mean) ** 2)
    return max(1, total - len(differences)) if total <= MAX_QUERIES else None


def _detectable_z() -> float:
    """Return the difference, in standard errors, that the test detects with a power of 80%."""
    stats = require("scipy.stats", extra="eval")
    return float(stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(POWER))
