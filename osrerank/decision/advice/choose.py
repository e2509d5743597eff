"""Choose depth, blend, model and passages by cross-validation, among those that are fast enough."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.decision.advice.sample import Found
from osrerank.decision.advice.verdict import TOLERANCE, Floats, Outcome, Verdict, interval, judge, student
from osrerank.evaluation.folds import block_folds
from osrerank.evaluation.measures import Averaging, evaluate
from osrerank.evaluation.tune import DECIMALS, Fold, Weights, cross_validate
from osrerank.options.rerank import MONO_DUO
from osrerank.types import Qrels, Run, ScoredDocument

DEPTHS = (10, 20, 50, 100)
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Of the first pass in a linear blend, in logits; 0 leaves it out."""
FOLDS = 5
SAMPLES, SEED = 1_000, 0
"""Of the randomisation test."""
Places = npt.NDArray[np.intp]
Scores = tuple[str, str, int, bool]
"""What scores depend on: model, passages, candidates compared in pairs, and whether they are those of sentences."""
PAPERS = Weights(0.2, 0.5, 0.3)
"""Weights of sentences that the option has by itself."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried.

    Attributes:
        model: its name, as ``--model`` has it.
        passages: the option ``passages`` as it is written: ``auto``, ``off`` or ``maxp``.
        depth: candidates that are reranked.
        blend: ``replace``, ``linear``, ``weighted`` or ``rrf``.
        weight: of the first pass in the blend.
        duo_depth: candidates that are compared in pairs; 0 for none.
        sentences: weights of the best sentences and the first pass, in place of passages and blend; None for these.
    """

    model: str
    passages: str
    depth: int
    blend: str
    weight: float
    duo_depth: int = 0
    sentences: Weights | None = None

    def __str__(self) -> str:
        if (one := self.sentences) is not None:
            weights = ", ".join(f"{weight:g}" for weight in one.sentences)
            return f"depth {self.depth}, sentences {weights} with {one.a:g} of the first pass, model {self.model}"
        blend = f"linear blend {self.weight:g}" if self.blend == "linear" else self.blend
        pairs = f", pairs of the first {self.duo_depth}" if self.duo_depth else ""
        return f"depth {self.depth}, {blend}{pairs}, model {self.model}, passages {self.passages}"

    @property
    def scores(self) -> Scores:
        """What the scores depend on."""
        return self.model, self.passages, self.duo_depth, self.sentences is not None

    def options(self) -> dict[str, Any]:
        """Return the options of a search, as a settings file has them."""
        if (one := self.sentences) is not None:
            return {"pipeline": "mono", "depth": self.depth, "sentences": {"a": one.a, "weights": list(one.sentences)}}
        weight = {} if self.blend in ("replace", "rrf") else {"blend_weight": self.weight}
        pairs = {"pipeline": MONO_DUO, "duo_depth": self.duo_depth} if self.duo_depth else {"pipeline": "mono"}
        return {**pairs, "depth": self.depth, "blend": self.blend, **weight, "passages": self.passages}


@dataclass(frozen=True, slots=True)
class Choice:
    """The setting chosen, and what it promises on queries that were not seen.

    Attributes:
        setting: the best by all queries.
        promised: mean of the measure over held-out queries, each by the setting chosen without it.
        low, high: of the promise's 95% confidence interval.
        verdict: the held-out values against the first pass, by a randomisation test of the whole choice.
        held_out: those values, in the order of the queries.
        by_fold: the settings that were chosen without each fold.
    """

    setting: Setting
    promised: float
    low: float
    high: float
    verdict: Verdict
    held_out: Floats
    by_fold: tuple[Setting, ...]

    def as_json(self) -> dict[str, Any]:
        """Return its values by name."""
        return {
            "setting": asdict(self.setting),
            "promised": self.promised,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict.as_json(),
            "by_fold": [asdict(one) for one in self.by_fold],
        }


def grid(model: str, passages: str, depths: Sequence[int], weights: Sequence[float] = WEIGHTS) -> list[Setting]:
    """Return the settings to try of a model, in the order of preference at equal quality: the lowest depth first."""
    blends = [("replace", 0.0) if weight == 0 else ("linear", weight) for weight in dict.fromkeys(weights)]
    return [Setting(model, passages, depth, *blend) for depth in sorted(depths) for blend in (*blends, ("rrf", 0.0))]


def order_of(found: Found, setting: Setting) -> list[str]:
    """Return the ids of a query's hits in the order of a setting."""
    if found.order:
        return list(found.order)
    if found.sentences is not None:
        return found.by_sentences(setting.depth, setting.sentences or PAPERS)
    return found.ranked(setting.depth, setting.blend, setting.weight)


def measured(found: Sequence[Found], qrels: Qrels, measure: str, setting: Setting | None) -> Floats:
    """Return a measure's values of a setting, or of the first pass, in the order of the queries.

    Raises:
        EvaluationError: there is no such measure.
    """
    rankings = {
        one.query.query_id: _documents(one.first_pass() if setting is None else order_of(one, setting)) for one in found
    }
    judged = Qrels({query_id: qrels.judgments[query_id] for query_id in rankings})
    values = evaluate(judged, Run(rankings), [measure], Averaging(complete=True)).per_query
    (by_query,) = values.values()
    return np.array([by_query[one.query.query_id] for one in found])


def _documents(doc_ids: Sequence[str]) -> tuple[ScoredDocument, ...]:
    return tuple(ScoredDocument(doc_id, float(len(doc_ids) - place)) for place, doc_id in enumerate(doc_ids))


def choose(
    query_ids: Sequence[str], before: Floats, values: Mapping[Setting, Floats], *, folds: int = FOLDS, alpha: float
) -> Choice:
    """Choose a setting, and measure the choice on held-out queries.

    Args:
        query_ids: of the sample.
        before: the first pass's values ``(queries,)``.
        values: of each setting, likewise; in the order of preference at equal means.
        folds: of the cross-validation.
        alpha: p-values below it decide.

    Raises:
        EvaluationError: there are too few queries.
    """
    settings = list(values)
    table = np.stack([values[one] for one in settings], axis=1)
    by_query = dict(zip(query_ids, table, strict=True))
    parts = block_folds(query_ids, folds)
    learned: list[Fold[Setting]] = cross_validate(by_query, parts, settings)
    places = {one: place for place, one in enumerate(settings)}
    held_out = {query_id: by_query[query_id][places[fold.weights]] for fold in learned for query_id in fold.held_out}
    after = np.array([held_out[query_id] for query_id in query_ids])
    numbers = {query_id: number for number, query_id in enumerate(query_ids)}
    numbered = [np.array([numbers[query_id] for query_id in part]) for part in parts]
    verdict = _with_choice(judge(before, after, alpha=alpha), table - before[:, None], numbered, alpha=alpha)
    low, high = interval(after, alpha=alpha)
    most = max(1.0, float(table.max()))  # measures are seldom above 1, and never below 0
    best = settings[int(np.argmax(np.round(table.mean(axis=0), DECIMALS)))]
    by_fold = tuple(fold.weights for fold in learned)
    return Choice(best, float(after.mean()), max(0.0, low), min(most, high), verdict, after, by_fold)


def _with_choice(verdict: Verdict, differences: Floats, folds: Sequence[Places], *, alpha: float) -> Verdict:
    """Return a verdict that takes into account that the setting was chosen by the same queries.

    Held-out values are not independent of one another: each was in the training folds of the others. A t-test of them
    says that a difference is there in more than one case in twenty where there is none (measured: 8%), so its statistic
    is compared with those of a randomisation: first pass and reranked lists of a query are exchanged by chance, and the
    setting is chosen again.

    Args:
        verdict: of the held-out values, by a t-test.
        differences: of each setting to the first pass ``(queries, settings)``.
        folds: the numbers of the queries of each.
        alpha: p-values below it decide.
    """
    count = len(differences)
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(SAMPLES, count))
    every, squares = signs @ differences, differences**2
    total, total_squares = np.zeros(SAMPLES), np.zeros(SAMPLES)
    for fold in folds:
        held_out = signs[:, fold] @ differences[fold]
        means = (every - held_out) / max(1, count - len(fold))
        chosen = np.argmax(np.round(means, DECIMALS), axis=1)
        total += held_out[np.arange(SAMPLES), chosen]
        total_squares += squares[fold].sum(axis=0)[chosen]
    error = np.sqrt(np.maximum(total_squares - total**2 / count, TOLERANCE) / (count - 1) / count)
    observed = (verdict.high - verdict.low) / 2 / student(alpha, count)
    by_chance = np.abs(total / count) / error
    statistic = abs(verdict.difference) / max(observed, TOLERANCE)
    p_value = float((1 + (by_chance >= statistic).sum()) / (1 + SAMPLES))
    half = observed * float(np.quantile(by_chance, 1 - alpha))
    is_decided = p_value < alpha
    outcome: Outcome = "undecided" if not is_decided else "helps" if verdict.difference > 0 else "hurts"
    low, high = verdict.difference - half, verdict.difference + half
    more = 0 if is_decided else verdict.more_queries or (None if verdict.more_queries is None else 1)
    return replace(verdict, outcome=outcome, p_value=p_value, low=low, high=high, more_queries=more)
