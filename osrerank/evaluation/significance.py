"""Test whether runs differ significantly on a measure, by the paired values of the same queries.

The tests are Student's paired t-test and Fisher's randomisation test, both two-tailed, which Smucker, Allan and
Carterette (CIKM 2007, "A comparison of statistical significance tests for information retrieval evaluation") found to
agree. The p-values of several comparisons are corrected by Holm's step-down method (1979).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import DEFAULT_MEASURES, Averaging, Evaluation, evaluate
from osrerank.evaluation.values import QrelsLike, RunLike, as_qrels, as_run

Differences = npt.NDArray[np.float64]
TestName = Literal["t", "randomisation"]
Marks = Literal["holm", "raw"]
"""Whether the letters that mark runs are based on corrected p-values (``holm``) or on uncorrected ones (``raw``)."""

SAMPLES = 100_000
"""The number of random sign patterns of the randomisation test."""
_MAX_EXACT_QUERIES = 16  # the largest n for which there are fewer sign patterns, 2 ** n, than SAMPLES
_CHUNK_ELEMENTS = 2**22  # signs drawn at a time: 32 MiB of float64
_TOLERANCE = 1e-12  # absorbs rounding errors when the same differences are summed in another order


@dataclass(frozen=True, slots=True)
class RunComparison:
    """How one run differs from another on one measure.

    Attributes:
        baseline: the baseline's name.
        run: the name of the run that is compared with the baseline.
        measure: the measure's name.
        n_queries: the number of queries, each with a value from both runs.
        difference: the mean of run minus baseline. It is positive if the run is better.
        effect_size: Cohen's d_z, the mean difference divided by its standard deviation. It is infinite if all
            differences are equal and not 0.
        wins: the number of queries on which the run is better.
        ties: the number of queries on which both are equal.
        losses: the number of queries on which the baseline is better.
        p_t: the two-tailed p-value of the paired t-test.
        p_randomisation: the two-tailed p-value of the randomisation test.
        p_t_holm: ``p_t``, corrected for all comparisons on this measure.
        p_randomisation_holm: ``p_randomisation``, corrected for all comparisons on this measure.
    """

    baseline: str
    run: str
    measure: str
    n_queries: int
    difference: float
    effect_size: float
    wins: int
    ties: int
    losses: int
    p_t: float
    p_randomisation: float
    p_t_holm: float = math.nan
    p_randomisation_holm: float = math.nan

    def p_value(self, test: TestName, marks: Marks = "holm") -> float:
        """Return the p-value of a test, corrected or raw."""
        if marks == "raw":
            return self.p_t if test == "t" else self.p_randomisation
        return self.p_t_holm if test == "t" else self.p_randomisation_holm


def compare(
    qrels: QrelsLike,
    runs: Mapping[str, RunLike],
    measures: Sequence[str] = DEFAULT_MEASURES,
    averaging: Averaging | None = None,
    *,
    all_pairs: bool = False,
    seed: int = 0,
) -> list[RunComparison]:
    """Measure runs, and test how they differ from the first one.

    Args:
        qrels: the judgments, as for `evaluate`.
        runs: the runs by name, as for `evaluate`. The first run is the baseline.
        measures: the measures' names.
        averaging: the documents and queries to measure, as for `evaluate`.
        all_pairs: whether to compare every two runs, and not only each run with the first.
        seed: the seed of the randomisation test.

    Raises:
        EvaluationError: there are fewer than two runs or two queries, the runs are measured over different queries, or
            `evaluate` raised the error.
    """
    judged = as_qrels(qrels)
    evaluations = [evaluate(judged, replace(as_run(run), name=name), measures, averaging) for name, run in runs.items()]
    return compare_runs(evaluations, all_pairs=all_pairs, seed=seed)


def compare_runs(evaluations: Sequence[Evaluation], *, all_pairs: bool = False, seed: int = 0) -> list[RunComparison]:
    """Compare evaluated runs on each measure, with Holm's correction for each measure and test.

    The first evaluation is the baseline. ``all_pairs`` and ``seed`` mean the same as in `compare`.

    Raises:
        EvaluationError: fewer than two runs or two queries, equal names, or runs measured over different queries.
    """
    _check_comparable(evaluations)
    pairs = list(combinations(evaluations, 2)) if all_pairs else [(evaluations[0], run) for run in evaluations[1:]]
    comparisons = []
    for measure in evaluations[0].overall:
        comparisons += _correct_p_values([_compare(*pair, measure, seed=seed) for pair in pairs])
    return comparisons


def paired_t_test(differences: Differences) -> float:
    """Return the two-tailed p-value of Student's paired t-test for differences ``(n,)``, n at least 2."""
    stats = require("scipy.stats", extra="eval")
    effect_size = compute_effect_size(differences)
    if effect_size == 0:
        return 1.0
    if math.isinf(effect_size):  # all differences are equal, so the t statistic is undefined
        return 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def randomisation_test(differences: Differences, *, seed: int = 0) -> float:
    """Return the two-tailed p-value of Fisher's randomisation test for differences ``(n,)``.

    Under the null hypothesis, both signs of each difference are equally probable. For up to 16 queries, the p-value is
    exact, over all ``2 ** n`` sign patterns. For more queries, it is estimated from `SAMPLES` random patterns and the
    observed one.
    """
    n_queries = len(differences)
    threshold = abs(differences.sum()) - _TOLERANCE
    if n_queries <= _MAX_EXACT_QUERIES:
        bits = (np.arange(2**n_queries)[:, None] >> np.arange(n_queries)) & 1  # row i: the binary digits of i
        signs_of_patterns = 1 - 2 * bits
        return float(np.mean(np.abs(signs_of_patterns @ differences) >= threshold))
    generator = np.random.default_rng(seed)
    chunk_size = max(1, _CHUNK_ELEMENTS // n_queries)
    n_extreme = 0
    for start in range(0, SAMPLES, chunk_size):
        n_patterns = min(chunk_size, SAMPLES - start)
        signs = 1.0 - 2.0 * generator.integers(0, 2, size=(n_patterns, n_queries), dtype=np.int8)
        n_extreme += int(np.count_nonzero(np.abs(signs @ differences) >= threshold))
    return (n_extreme + 1) / (SAMPLES + 1)


def format_p_value(p_value: float) -> str:
    """Return a p-value as papers write it: ``p = .0312``, or ``p < .0001``."""
    return "p < .0001" if p_value < 1e-4 else f"p = {p_value:.4f}".replace("0.", ".")


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method, in the given order: .01 and .04 become .02 and .04.

    The i-th smallest of m p-values is multiplied by m - i + 1. A corrected value is at most 1, and at least that of the
    next smaller p-value.
    """
    ascending_indices = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [0.0] * len(p_values)
    previous = 0.0
    for rank, index in enumerate(ascending_indices, start=1):
        previous = min(1.0, max(previous, (len(p_values) - rank + 1) * p_values[index]))
        corrected[index] = previous
    return corrected


def compute_effect_size(differences: Differences) -> float:
    """Return Cohen's d_z of differences ``(n,)``: mean divided by sample standard deviation, or 0 if all are 0."""
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    if deviation <= _TOLERANCE * max(1.0, abs(mean)):
        return 0.0 if abs(mean) <= _TOLERANCE else math.copysign(math.inf, mean)
    return mean / deviation


def letter_significant_runs(
    comparisons: Sequence[RunComparison],
    names: Sequence[str],
    *,
    test: TestName = "t",
    alpha: float = 0.05,
    marks: Marks = "holm",
) -> dict[tuple[str, str], str]:
    """Return the superscript letters that papers print beside a run's value, such as ``.712ᵃᶜ``.

    Each letter stands for a run that is significantly worse by corrected p-values. With ``raw`` marks, it stands for a
    run that is significantly better or worse by uncorrected p-values (Chen et al., ICIP at TREC-2020, Table 2).

    Args:
        comparisons: the comparisons from `compare_runs`.
        names: the runs' names in the table's order. The letter ``a`` stands for the first run.
        test: the test whose p-values are used.
        alpha: the significance level. Lower p-values are significant.
        marks: ``holm`` or ``raw``, as above.

    Returns:
        (run, measure) -> letters in alphabetical order, for example ``ac``. Runs without letters are absent.
    """
    letters: dict[tuple[str, str], set[str]] = {}
    for comparison in comparisons:
        if comparison.p_value(test, marks) < alpha:
            better, worse = comparison.run, comparison.baseline
            if comparison.difference < 0:
                better, worse = worse, better
            pairs = [(better, worse), (worse, better)] if marks == "raw" else [(better, worse)]
            for run, other in pairs:
                letters.setdefault((run, comparison.measure), set()).add(get_run_letter(names.index(other)))
    return {key: "".join(sorted(run_letters)) for key, run_letters in letters.items()}


def get_run_letter(index: int) -> str:
    """Return the letter that stands for a run: a, b, ..., z, then (27), (28), ... Indices count from 0."""
    return chr(ord("a") + index) if index < 26 else f"({index + 1})"


def _check_comparable(evaluations: Sequence[Evaluation]) -> None:
    if len(evaluations) < 2:
        raise EvaluationError("a comparison needs at least two runs; pass the baseline first")
    if len({evaluation.run for evaluation in evaluations}) != len(evaluations):
        names = [evaluation.run for evaluation in evaluations]
        repeated = next(name for name in names if names.count(name) > 1)
        raise EvaluationError(f"two runs have the name {repeated!r}; rename one file, or change the tag in its lines")
    first = evaluations[0]
    for other in evaluations[1:]:
        for measure, values in first.per_query.items():
            if values.keys() != other.per_query[measure].keys():
                # the queries are the same, but the measure is undefined for some of them
                if _collect_query_ids(first) == _collect_query_ids(other):
                    raise EvaluationError(
                        f"{first.run} and {other.run} cannot be compared by {measure}, because it has no value for "
                        f"some queries of one run; leave out {measure}"
                    )
                raise _different_queries_error(first.run, values, other.run, other.per_query[measure])
            if len(values) < 2:
                raise EvaluationError(
                    "a significance test needs at least two queries, but only one query of the runs is judged"
                )


def _collect_query_ids(evaluation: Evaluation) -> set[str]:
    return {query_id for values in evaluation.per_query.values() for query_id in values}


def _different_queries_error(
    first: str, first_values: Mapping[str, float], second: str, second_values: Mapping[str, float]
) -> EvaluationError:
    n_first = len(first_values.keys() - second_values.keys())
    n_second = len(second_values.keys() - first_values.keys())
    return EvaluationError(
        f"{first} and {second} have different judged queries ({n_first} only in the first, {n_second} only in "
        "the second); set --complete to average over all judged queries, where a missing query counts as 0"
    )


def _compare(baseline: Evaluation, run: Evaluation, measure: str, *, seed: int) -> RunComparison:
    values = run.per_query[measure]
    baseline_values = baseline.per_query[measure]
    differences = np.array([values[query_id] - baseline_values[query_id] for query_id in baseline_values])
    return RunComparison(
        baseline=baseline.run,
        run=run.run,
        measure=measure,
        n_queries=len(differences),
        difference=float(differences.mean()),
        effect_size=compute_effect_size(differences),
        wins=int(np.count_nonzero(differences > _TOLERANCE)),
        ties=int(np.count_nonzero(np.abs(differences) <= _TOLERANCE)),
        losses=int(np.count_nonzero(differences < -_TOLERANCE)),
        p_t=paired_t_test(differences),
        p_randomisation=randomisation_test(differences, seed=seed),
    )


def _correct_p_values(comparisons: Sequence[RunComparison]) -> list[RunComparison]:
    p_t_holm = correct_by_holm([comparison.p_t for comparison in comparisons])
    p_randomisation_holm = correct_by_holm([comparison.p_randomisation for comparison in comparisons])
    return [
        replace(comparison, p_t_holm=p_t, p_randomisation_holm=p_randomisation)
        for comparison, p_t, p_randomisation in zip(comparisons, p_t_holm, p_randomisation_holm, strict=True)
    ]
