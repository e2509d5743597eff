"""Decide whether reranking helps, by a paired t-test, and estimate how many queries a decision needs.

The number of queries is that of a two-sided test with a power of 80%, by the normal approximation (Sakai: Statistical
reform in information retrieval?, SIGIR Forum 2014).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import EvaluationError
from osrerank.evaluation.significance import paired_t_test

ALPHA, POWER = 0.05, 0.8
MIN_QUERIES = 10
MAX_QUERIES = 1_000_000
TOLERANCE = 1e-12
Outcome = Literal["helps", "hurts", "undecided"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether reranking helps on a sample of queries, with the numbers of the test.

    Attributes:
        outcome: helps or hurts if the p-value is below .05, else undecided.
        queries: number of queries.
        before, after: mean of the measure: for the first pass, and reranked.
        difference: mean of after minus before.
        low, high: ends of the 95% confidence interval of the mean difference.
        p_value: two-tailed p-value of the test.
        better, equal, worse: number of queries whose value rises, stays the same or falls.
        more_queries: number of further queries that would decide with a power of 80%, if the difference is as measured.
            It is 0 if the test has decided, and None if more than a million queries would be needed.
        detectable: smallest difference that the present number of queries detects with a power of 80%.
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


def judge(before: Floats, after: Floats) -> Verdict:
    """Test by a paired t-test whether reranked lists are better or worse than the first pass.

    Args:
        before: the measure of each query for the first pass ``(queries,)``; higher is better.
        after: the measure for the reranked lists, for the same queries.

    Raises:
        EvaluationError: there are fewer than ten queries.
    """
    if len(before) < MIN_QUERIES:
        raise too_few(len(before))
    differences = after - before
    p_value = paired_t_test(differences)
    mean = float(differences.mean())
    low, high = interval(differences)
    is_decided = p_value < ALPHA
    outcome: Outcome = "undecided" if not is_decided else "helps" if mean > 0 else "hurts"
    return Verdict(
        outcome=outcome,
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
        detectable=_reach() * float(differences.std(ddof=1)) / math.sqrt(len(before)),
    )


def too_few(queries: int) -> EvaluationError:
    """Return the error for too few judged queries; it states their number and the number needed."""
    return EvaluationError(f"{queries} judged queries are too few for a test: at least {MIN_QUERIES} are needed")


def interval(values: Floats) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean by Student's t; values ``(n,)``, n at least 2."""
    half = student(len(values)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return mean - half, mean + half


def student(count: int) -> float:
    """Return half the width of a mean's 95% confidence interval, in standard errors, for this many values."""
    stats = require("scipy.stats", extra="eval")
    return float(stats.t.ppf(1 - ALPHA / 2, count - 1))


def more_queries(differences: Floats) -> int | None:
    """Return how many further queries would decide, if mean and spread stay the same; None if over a million."""
    mean, deviation = abs(float(differences.mean())), float(differences.std(ddof=1))
    if mean <= TOLERANCE:
        return None
    needed = math.ceil((_reach() * deviation / mean) ** 2)
    return max(1, needed - len(differences)) if needed <= MAX_QUERIES else None


def _reach() -> float:
    """Return how many standard errors a difference must span for the test to detect it in four of five cases."""
    stats = require("scipy.stats", extra="eval")
    return float(stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(POWER))
