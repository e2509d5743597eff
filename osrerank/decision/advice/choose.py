"""Choose the best of several settings by cross-validation, and test the choice on held-out queries."""

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

FOLDS = 5
N_RANDOMISATIONS = 1_000
"""The number of random exchanges in the randomisation test."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The best setting, and an estimate of its value on unseen queries.

    Attributes:
        setting: the setting with the highest mean over all queries.
        promised: the mean over all queries, each ranked with the setting that was chosen on the other folds. It
            estimates the mean on unseen queries.
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


def measure_setting(all_hits: Sequence[QueryHits], qrels: Qrels, measure: str, setting: SearchSetting | None) -> Floats:
    """Return a measure's value for each query, an array ``(queries,)``. The setting None means the first pass.

    Raises:
        EvaluationError: the measure is unknown.
    """
    rankings = {query_hits.query.query_id: score_by_rank(query_hits.order(setting)) for query_hits in all_hits}
    used_qrels = Qrels({query_id: qrels.judgments[query_id] for query_id in rankings})
    (value_by_query,) = evaluate(used_qrels, Run(rankings), [measure], Averaging(complete=True)).per_query.values()
    return np.array([value_by_query[query_hits.query.query_id] for query_hits in all_hits])


def choose(query_ids: Sequence[str], current: Floats, values: Mapping[SearchSetting, Floats]) -> Choice:
    """Choose the setting with the highest mean, and measure the choice on held-out queries.

    Args:
        query_ids: the queries' ids.
        current: the values of the current setting ``(queries,)``.
        values: the values of each setting ``(queries,)``. If two means are equal, the earlier setting is chosen.

    Raises:
        EvaluationError: there are too few queries.
    """
    settings = list(values)
    table = np.stack([values[setting] for setting in settings], axis=1)  # (queries, settings)
    values_by_query = dict(zip(query_ids, table, strict=True))
    folds: list[Fold[SearchSetting]] = cross_validate(values_by_query, split_into_blocks(query_ids, FOLDS), settings)
    row_by_query = {query_id: row for row, query_id in enumerate(query_ids)}
    fold_rows = [np.array([row_by_query[query_id] for query_id in fold.held_out_ids]) for fold in folds]
    held_out = np.empty(len(query_ids))
    for fold, rows in zip(folds, fold_rows, strict=True):
        held_out[rows] = table[rows, settings.index(fold.setting)]
    differences = table - current[:, None]
    verdict = _correct_for_choice(decide(current, held_out), differences, fold_rows)
    low, high = confidence_interval(held_out)
    maximum = max(1.0, float(table.max()))  # some measures exceed 1, but no measure is negative
    best = settings[int(np.argmax(np.round(table.mean(axis=0), DECIMALS)))]
    by_fold = tuple(fold.setting for fold in folds)
    return Choice(best, float(held_out.mean()), max(0.0, low), min(maximum, high), verdict, by_fold)


def _correct_for_choice(verdict: Verdict, differences: Floats, fold_rows: Sequence[npt.NDArray[np.intp]]) -> Verdict:
    """Replace the t-test of a verdict by a randomisation test that repeats the choice of the setting.

    Held-out values are not independent, because each query also helps to choose the setting for other queries. At the
    5% level, a t-test therefore has 8% false positives (measured). So its statistic is compared with statistics after
    random exchanges. An exchange swaps the values of the current setting and of the other settings for about half of
    the queries, which negates these queries' differences. Then the setting is chosen again.

    Args:
        verdict: the verdict of a t-test on the held-out values.
        differences: each setting's values minus the current setting's values ``(queries, settings)``.
        fold_rows: the rows of each fold's queries.
    """
    n_queries = len(differences)
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(N_RANDOMISATIONS, n_queries))  # -1 is an exchange
    sums = signs @ differences  # (randomisations, settings)
    # each randomisation's sum of the held-out differences, and of their squares
    totals, totals_of_squares = np.zeros(N_RANDOMISATIONS), np.zeros(N_RANDOMISATIONS)
    for rows in fold_rows:
        held_out_sums = signs[:, rows] @ differences[rows]
        training_means = (sums - held_out_sums) / max(1, n_queries - len(rows))
        best_settings = np.argmax(np.round(training_means, DECIMALS), axis=1)
        totals += held_out_sums[np.arange(N_RANDOMISATIONS), best_settings]
        totals_of_squares += (differences[rows] ** 2).sum(axis=0)[best_settings]
    squared_deviations = np.maximum(totals_of_squares - totals**2 / n_queries, TOLERANCE)
    random_standard_errors = np.sqrt(squared_deviations / (n_queries - 1) / n_queries)
    random_statistics = np.abs(totals / n_queries) / random_standard_errors
    standard_error = (verdict.high - verdict.low) / 2 / t_quantile(n_queries)
    statistic = abs(verdict.difference) / max(standard_error, TOLERANCE)
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
