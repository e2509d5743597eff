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
        promised: the estimate: the mean of the measure over all queries, each ranked with the setting that was chosen
            without the query's fold.
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
    """Return a measure's value for each query with a setting ``(queries,)``. None means the first pass.

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
    by_query = dict(zip(query_ids, table, strict=True))
    folds = split_into_blocks(query_ids, FOLDS)
    chosen: list[Fold[SearchSetting]] = cross_validate(by_query, folds, settings)
    held_out_by_query: dict[str, float] = {}
    for fold in chosen:
        column = settings.index(fold.setting)
        held_out_by_query |= {query_id: by_query[query_id][column] for query_id in fold.held_out_ids}
    held_out = np.array([held_out_by_query[query_id] for query_id in query_ids])
    rows = {query_id: row for row, query_id in enumerate(query_ids)}
    fold_rows = [np.array([rows[query_id] for query_id in fold]) for fold in folds]
    verdict = _correct_for_choice(decide(current, held_out), table - current[:, None], fold_rows)
    low, high = confidence_interval(held_out)
    maximum = max(1.0, float(table.max()))  # some measures exceed 1, but no measure is negative
    best = settings[int(np.argmax(np.round(table.mean(axis=0), DECIMALS)))]
    by_fold = tuple(fold.setting for fold in chosen)
    return Choice(best, float(held_out.mean()), max(0.0, low), min(maximum, high), verdict, by_fold)


def _correct_for_choice(verdict: Verdict, differences: Floats, folds: Sequence[npt.NDArray[np.intp]]) -> Verdict:
    """Replace the t-test of a verdict by a randomisation test that repeats the choice of the setting.

    Held-out values are not independent, because each query also helps to choose the setting for other queries. At the
    5% level, a t-test therefore has 8% false positives (measured). So the test's statistic is compared with those of
    random exchanges: for about half of the queries, the current setting's values are exchanged with those of the other
    settings, which negates the differences, and the setting is chosen again.

    Args:
        verdict: the verdict of a t-test on the held-out values.
        differences: each setting's values minus the current setting's values ``(queries, settings)``.
        folds: the rows of each fold's queries.
    """
    count = len(differences)
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(N_RANDOMISATIONS, count))  # -1 is an exchange
    sums = signs @ differences  # (randomisations, settings)
    totals, totals_of_squares = np.zeros(N_RANDOMISATIONS), np.zeros(N_RANDOMISATIONS)
    for fold in folds:
        held_out_sums = signs[:, fold] @ differences[fold]
        training_means = (sums - held_out_sums) / max(1, count - len(fold))
        best_settings = np.argmax(np.round(training_means, DECIMALS), axis=1)
        totals += held_out_sums[np.arange(N_RANDOMISATIONS), best_settings]
        totals_of_squares += (differences[fold] ** 2).sum(axis=0)[best_settings]
    errors = np.sqrt(np.maximum(totals_of_squares - totals**2 / count, TOLERANCE) / (count - 1) / count)
    random_statistics = np.abs(totals / count) / errors
    error = (verdict.high - verdict.low) / 2 / t_quantile(count)
    statistic = abs(verdict.difference) / max(error, TOLERANCE)
    p_value = float((1 + (random_statistics >= statistic).sum()) / (1 + N_RANDOMISATIONS))
    half_width = error * float(np.quantile(random_statistics, 1 - ALPHA))
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
