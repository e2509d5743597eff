"""Choose depth and weight of the first pass by cross-validation, and test the choice on held-out queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from osrerank.decision.advice.sample import SampledQuery, SearchSetting
from osrerank.decision.advice.verdict import ALPHA, TOLERANCE, Floats, Outcome, Verdict, interval, judge, student
from osrerank.evaluation.folds import block_folds
from osrerank.evaluation.measures import Averaging, evaluate
from osrerank.evaluation.tune import DECIMALS, Fold, cross_validate
from osrerank.types import Qrels, Run, ScoredDocument

FOLDS = 5
SAMPLES, SEED = 1_000, 0
"""Draws of the randomisation test."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen setting, and the value that it promises on unseen queries.

    Attributes:
        setting: the setting with the highest mean over all queries.
        promised: the mean of the measure over held-out queries, each ranked by the setting chosen on the other folds.
        low, high: ends of the promise's 95% confidence interval.
        verdict: compares the held-out values with the current setting's, by a randomisation test of the whole choice.
        by_fold: for each fold, the setting chosen on the other folds.
    """

    setting: SearchSetting
    promised: float
    low: float
    high: float
    verdict: Verdict
    by_fold: tuple[SearchSetting, ...]


def measure_setting(
    sampled: Sequence[SampledQuery], qrels: Qrels, measure: str, setting: SearchSetting | None
) -> Floats:
    """Return a measure's value for each query when its hits are ranked by a setting; None is the first pass.

    Raises:
        EvaluationError: the measure is unknown.
    """
    rankings = {query_hits.query.query_id: _documents(query_hits.order(setting)) for query_hits in sampled}
    judged = Qrels({query_id: qrels.judgments[query_id] for query_id in rankings})
    values = evaluate(judged, Run(rankings), [measure], Averaging(complete=True)).per_query
    (by_query,) = values.values()
    return np.array([by_query[query_hits.query.query_id] for query_hits in sampled])


def _documents(doc_ids: Sequence[str]) -> tuple[ScoredDocument, ...]:
    return tuple(ScoredDocument(doc_id, float(len(doc_ids) - index)) for index, doc_id in enumerate(doc_ids))


def choose(query_ids: Sequence[str], present: Floats, values: Mapping[SearchSetting, Floats]) -> Choice:
    """Choose the setting with the highest mean, and measure the choice on held-out queries.

    Args:
        query_ids: ids of the queries.
        present: the current setting's values ``(queries,)``.
        values: setting -> its values ``(queries,)``; if means are equal, the earlier setting is chosen.

    Raises:
        EvaluationError: there are too few queries.
    """
    settings = list(values)
    table = np.stack([values[setting] for setting in settings], axis=1)
    by_query = dict(zip(query_ids, table, strict=True))
    folds = block_folds(query_ids, FOLDS)
    learned: list[Fold[SearchSetting]] = cross_validate(by_query, folds, settings)
    columns = {setting: column for column, setting in enumerate(settings)}
    held_out = {query_id: by_query[query_id][columns[fold.setting]] for fold in learned for query_id in fold.held_out}
    after = np.array([held_out[query_id] for query_id in query_ids])
    rows = {query_id: row for row, query_id in enumerate(query_ids)}
    numbered = [np.array([rows[query_id] for query_id in fold]) for fold in folds]
    verdict = _correct_for_choice(judge(present, after), table - present[:, None], numbered)
    low, high = interval(after)
    highest = max(1.0, float(table.max()))  # measures are seldom above 1, and never below 0
    best = settings[int(np.argmax(np.round(table.mean(axis=0), DECIMALS)))]
    by_fold = tuple(fold.setting for fold in learned)
    return Choice(best, float(after.mean()), max(0.0, low), min(highest, high), verdict, by_fold)


def _correct_for_choice(verdict: Verdict, differences: Floats, folds: Sequence[npt.NDArray[np.intp]]) -> Verdict:
    """Return the verdict of a randomisation test, which accounts for the choice of the setting on the same queries.

    Held-out values are not independent: each query was in the training folds of the other queries. So a t-test at the
    5% level reports a difference that does not exist in too many cases (measured: 8%). Its statistic is therefore
    compared with the statistics of random samples. In each sample, the values of the current setting and the other
    settings are exchanged at random for each query, and the setting is chosen again.

    Args:
        verdict: the verdict of a t-test of the held-out values.
        differences: each setting's value minus the current one's ``(queries, settings)``.
        folds: the row numbers of each fold's queries.
    """
    count = len(differences)
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(SAMPLES, count))
    sums, squares = signs @ differences, differences**2
    total, total_squares = np.zeros(SAMPLES), np.zeros(SAMPLES)
    for fold in folds:
        held_out = signs[:, fold] @ differences[fold]
        means = (sums - held_out) / max(1, count - len(fold))
        chosen = np.argmax(np.round(means, DECIMALS), axis=1)
        total += held_out[np.arange(SAMPLES), chosen]
        total_squares += squares[fold].sum(axis=0)[chosen]
    error = np.sqrt(np.maximum(total_squares - total**2 / count, TOLERANCE) / (count - 1) / count)
    observed = (verdict.high - verdict.low) / 2 / student(count)
    by_chance = np.abs(total / count) / error
    statistic = abs(verdict.difference) / max(observed, TOLERANCE)
    p_value = float((1 + (by_chance >= statistic).sum()) / (1 + SAMPLES))
    half = observed * float(np.quantile(by_chance, 1 - ALPHA))
    is_decided = p_value < ALPHA
    outcome: Outcome = "undecided" if not is_decided else "helps" if verdict.difference > 0 else "hurts"
    low, high = verdict.difference - half, verdict.difference + half
    more_queries = 0 if is_decided else verdict.more_queries or (None if verdict.more_queries is None else 1)
    return replace(verdict, outcome=outcome, p_value=p_value, low=low, high=high, more_queries=more_queries)
