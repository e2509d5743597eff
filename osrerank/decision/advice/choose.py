"""Choose the best of several search settings by cross-validation, and compare it with the current setting.

A setting's value for a query is a measure of its ranking, such as nDCG@10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from osrerank.decision.advice.query_hits import QueryHits, SearchSetting
from osrerank.decision.advice.verdict import (
    ALPHA,
    TOLERANCE,
    Floats,
    Verdict,
    confidence_interval,
    decide,
    outcome_of,
    t_quantile,
)
from osrerank.evaluation.folds import split_into_blocks
from osrerank.evaluation.measures import Averaging, evaluate
from osrerank.evaluation.tune import DECIMALS, Fold, cross_validate
from osrerank.evaluation.values import score_by_rank
from osrerank.types import Qrels, Run

N_FOLDS = 5
N_RANDOMISATIONS = 1_000
"""The number of repetitions in the randomisation test."""
SEED = 0
"""The seed of the randomisation test."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best setting, and an estimate of its mean value on unseen queries.

    Attributes:
        setting: the setting with the highest mean value over all queries.
        promised: the estimate: the mean over all queries, each ranked with the setting chosen on the other folds.
        low, high: the bounds of the 95% confidence interval of ``promised``.
        verdict: the comparison with the current setting, by a randomisation test.
        by_fold: for each fold, the setting with the highest mean over the queries of the other folds.
    """

    setting: SearchSetting
    promised: float
    low: float
    high: float
    verdict: Verdict
    by_fold: tuple[SearchSetting, ...]


def measure_setting(queries: Sequence[QueryHits], qrels: Qrels, measure: str, setting: SearchSetting | None) -> Floats:
    """Return the setting's value for each query, an array ``(queries,)``. The setting None means the first pass.

    Raises:
        EvaluationError: the measure is unknown.
    """
    rankings = {query_hits.query.query_id: score_by_rank(query_hits.order(setting)) for query_hits in queries}
    used_qrels = Qrels({query_id: qrels.judgments[query_id] for query_id in rankings})
    evaluation = evaluate(used_qrels, Run(rankings), [measure], Averaging(complete=True))  # no hits: the value is 0
    (value_by_query,) = evaluation.per_query.values()  # of the only measure
    return np.array([value_by_query[query_hits.query.query_id] for query_hits in queries])


def choose(query_ids: Sequence[str], current_values: Floats, values: Mapping[SearchSetting, Floats]) -> Choice:
    """Choose the setting with the highest mean value, and measure the choice on held-out queries.

    Args:
        query_ids: the queries' ids.
        current_values: the current setting's value for each query ``(queries,)``.
        values: the same for each setting to choose from. If two means are equal, the earlier setting is chosen.

    Raises:
        EvaluationError: there are too few queries.
    """
    settings = list(values)
    table = np.stack([values[setting] for setting in settings], axis=1)  # (queries, settings)
    values_by_query = dict(zip(query_ids, table, strict=True))
    folds: list[Fold[SearchSetting]] = cross_validate(values_by_query, split_into_blocks(query_ids, N_FOLDS), settings)
    row_by_query = {query_id: row for row, query_id in enumerate(query_ids)}
    fold_rows = [np.array([row_by_query[query_id] for query_id in fold.held_out_ids]) for fold in folds]
    held_out_values = np.empty(len(query_ids))
    for fold, rows in zip(folds, fold_rows, strict=True):
        held_out_values[rows] = table[rows, settings.index(fold.setting)]
    differences = table - current_values[:, None]
    low, high = confidence_interval(held_out_values)
    maximum = max(1.0, float(table.max()))  # some measures exceed 1, but no measure is negative
    means = np.round(table.mean(axis=0), DECIMALS)
    return Choice(
        setting=settings[int(np.argmax(means))],
        promised=float(held_out_values.mean()),
        low=max(0.0, low),
        high=min(maximum, high),
        verdict=_correct_for_choice(decide(current_values, held_out_values), differences, fold_rows),
        by_fold=tuple(fold.setting for fold in folds),
    )


def _correct_for_choice(verdict: Verdict, differences: Floats, fold_rows: Sequence[npt.NDArray[np.intp]]) -> Verdict:
    """Replace the t-test of a verdict by a randomisation test that repeats the choice of the setting.

    Held-out values are not independent, because each query also helps to choose the setting for other queries. At the
    5% level, a t-test therefore has 8% false positives (measured). So its statistic is compared with statistics of
    random data (`_randomise`).

    Args:
        verdict: the verdict of a t-test on the held-out values.
        differences: each setting's values minus the current setting's values ``(queries, settings)``.
        fold_rows: the rows of each fold's queries.
    """
    # The verdict's 95% confidence interval extends t_quantile standard errors to both sides.
    standard_error = (verdict.high - verdict.low) / 2 / t_quantile(len(differences))
    statistic = abs(verdict.difference) / max(standard_error, TOLERANCE)
    random_statistics = _randomise(differences, fold_rows)
    p_value = float((1 + (random_statistics >= statistic).sum()) / (1 + N_RANDOMISATIONS))
    half_width = standard_error * float(np.quantile(random_statistics, 1 - ALPHA))
    more_queries = verdict.more_queries
    if p_value < ALPHA:
        more_queries = 0
    elif more_queries == 0:  # the t-test was significant, but the randomisation test is not
        more_queries = 1
    return replace(
        verdict,
        outcome=outcome_of(p_value, verdict.difference),
        p_value=p_value,
        low=verdict.difference - half_width,
        high=verdict.difference + half_width,
        more_queries=more_queries,
    )


def _randomise(differences: Floats, fold_rows: Sequence[npt.NDArray[np.intp]]) -> Floats:
    """Return the absolute t-statistics ``(randomisations,)`` of the held-out differences after random exchanges.

    Each randomisation exchanges the values of the current setting and of the other settings for about half of the
    queries, which negates these queries' differences. Then a setting is chosen for each fold again.
    """
    n_queries = len(differences)
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(N_RANDOMISATIONS, n_queries))  # -1 is an exchange
    all_sums = signs @ differences  # (randomisations, settings)
    # Over the held-out queries of all folds, the sum of the chosen settings' differences, and of their squares.
    totals, totals_of_squares = np.zeros(N_RANDOMISATIONS), np.zeros(N_RANDOMISATIONS)
    for rows in fold_rows:
        held_out_sums = signs[:, rows] @ differences[rows]
        training_means = (all_sums - held_out_sums) / max(1, n_queries - len(rows))
        chosen = np.argmax(np.round(training_means, DECIMALS), axis=1)  # a setting's index for each randomisation
        totals += held_out_sums[np.arange(N_RANDOMISATIONS), chosen]
        totals_of_squares += (differences[rows] ** 2).sum(axis=0)[chosen]
    squared_deviations = np.maximum(totals_of_squares - totals**2 / n_queries, TOLERANCE)
    standard_errors = np.sqrt(squared_deviations / (n_queries - 1) / n_queries)
    statistics: Floats = np.abs(totals / n_queries) / standard_errors
    return statistics
