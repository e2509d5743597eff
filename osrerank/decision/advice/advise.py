"""Run a sample of queries and say whether reranking helps, with which setting, and at what cost."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osrerank.client import Client
from osrerank.decision.advice.choose import DEPTHS, WEIGHTS, Choice, Setting, choose, grid, measured
from osrerank.decision.advice.costs import (
    Cost,
    StatesPrice,
    fast_enough,
    measure_costs,
    memory_bytes,
    states_price,
)
from osrerank.decision.advice.orders import Difference, difference, judged_share
from osrerank.decision.advice.recall import recall_by_source
from osrerank.decision.advice.sample import Found, percentiles, sampling_options, search_sample
from osrerank.decision.advice.verdict import ALPHA, Floats, Verdict, judge
from osrerank.errors import EvaluationError
from osrerank.evaluation.sources import SourceRecall
from osrerank.options.passages import Passages
from osrerank.options.rerank import Rerank
from osrerank.types import Qrels, Query

LONG_SHARE = 0.05
"""Share of long hits from which on the passages setting is tried."""
SEARCHING = 0.6
"""Share of the time for searching the sample; the rest is for timing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the advice.

    Attributes:
        measure: by ir-measures' names.
        p95_ms: limit of a search's 95th percentile; None for none.
        sample: queries at most.
        budget_s: seconds for searching and timing.
        searches_per_s: for which cores are given.
        depths: to try.
        alpha: p-values below it decide.
        seed: of the sample.
    """

    measure: str = "nDCG@10"
    p95_ms: float | None = None
    sample: int = 200
    budget_s: float = 300.0
    searches_per_s: float = 10.0
    depths: tuple[int, ...] = DEPTHS
    alpha: float = ALPHA
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """A model with a passages setting: its sample, and what searches cost.

    Attributes:
        model: its name.
        passages: as a settings file has the option.
        found: the sample.
        costs: of each depth; 0 is the first pass.
        first_p50_ms, first_p95_ms: of the sample's searches, at the greatest depth, most with new documents.
        encoded: documents whose states these computed.
    """

    model: str
    passages: str
    found: tuple[Found, ...]
    costs: Mapping[int, Cost]
    first_p50_ms: float
    first_p95_ms: float
    encoded: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What was found out.

    Attributes:
        index: that was searched.
        wanted: what was asked for.
        options: of the index, as they are now.
        current: these as a setting.
        tried: models and passages settings; the current ones are the first.
        queries: that were searched, of the sample.
        asked: queries of the sample; more than were searched where the time was too short.
        memory: bytes of this process at its largest.
        states: price of the states of the whole index with the chosen model.
        verdict: of the current setting against the first pass; None without judgments.
        choice: the best setting that is fast enough; None without judgments, or where none is.
        before: the first pass's values, in the order of the sample.
        values: of each setting that was tried, likewise.
        judged: share of judged documents among the ten first hits, of the first pass and reranked.
        change: how the current setting changes the first pass's order.
        agreement: of each other model with the current one, both by themselves.
        recall: of the sources of candidates; empty without judgments.
    """

    index: str
    wanted: Wanted
    options: Rerank
    current: Setting
    tried: tuple[Tried, ...]
    queries: int
    asked: int
    memory: int | None
    states: StatesPrice | None
    verdict: Verdict | None = None
    choice: Choice | None = None
    before: Floats | None = None
    values: Mapping[Setting, Floats] = field(default_factory=dict)
    judged: tuple[float, float] = (1.0, 1.0)
    change: Difference | None = None
    agreement: Mapping[str, Difference] = field(default_factory=dict)
    recall: tuple[SourceRecall, ...] = ()

    @property
    def best(self) -> Setting:
        """The chosen setting; the current one where none was chosen."""
        return self.choice.setting if self.choice else self.current

    def tried_with(self, setting: Setting) -> Tried:
        """Return the sample that a setting's scores are in."""
        return next(one for one in self.tried if (one.model, one.passages) == setting.scores)

    @property
    def cost(self) -> Cost:
        """What a search with the best setting costs."""
        costs = self.tried_with(self.best).costs
        return costs[min(costs, key=lambda depth: (abs(depth - self.best.depth), depth))]

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The options to write: those of the recommended setting, or no reranking."""
        setting = self.recommended_setting
        return {"pipeline": "none"} if setting is None else setting.options()

    @property
    def recommended_setting(self) -> Setting | None:
        """The setting to use; None for no reranking.

        It is the best one where it helps, else the current one where that helps and is fast enough, else the best one
        where it may help.
        """
        if self.verdict is None:
            return self.current
        outcome = self.choice.verdict.outcome if self.choice else "hurts"
        fast = fast_enough(self.tried_with(self.current).costs, self.wanted.p95_ms)
        if outcome != "helps" and self.verdict.outcome == "helps" and self.current.depth in fast:
            return self.current
        if self.choice and (outcome == "helps" or (outcome == "undecided" and self.choice.verdict.difference > 0)):
            return self.choice.setting
        return None


def advise(
    clients: Mapping[str, Client],
    index: str,
    queries: Sequence[Query],
    qrels: Qrels | None,
    wanted: Wanted,
    *,
    advance: Callable[[], None] = lambda: None,
) -> Advice:
    """Search a sample with each model, time it, and compare settings where there are judgments.

    Args:
        clients: of the same index, by their model's name; the first has the current model.
        index: its name.
        queries: the query set; with judgments, those without are left out.
        qrels: judgments; None where there are none.
        wanted: what is asked for.
        advance: called after each query of a sample.

    Raises:
        ConfigError: the index's options are about something else than one model.
        EvaluationError: there are too few judged queries, or none found anything.
    """
    chosen = sampled(queries, qrels, wanted)
    tried = _tried(clients, index, chosen, wanted, advance)
    if not any(one.candidates for one in tried[0].found):
        raise EvaluationError(f"no query of the sample found anything in {index}: are they queries of this index?")
    first_name, first = next(iter(clients.items()))
    current = current_setting(first, index, first_name, tried[0].passages)
    advice = Advice(
        index,
        wanted,
        first.options_of(index),
        current,
        tuple(tried),
        len(tried[0].found),
        len(chosen),
        memory_bytes(),
        None,
        change=_change(tried[0].found, current),
        agreement=_agreement(tried, current),
    )
    if qrels is not None:
        weight = current.weight if current.blend == "linear" else 0.0
        advice = with_judgments(advice, qrels, (weight, *WEIGHTS))
        recall = recall_by_source(first, index, advice.tried[0].found, qrels)
        advice = replace(advice, recall=recall)
    return replace(advice, states=states_price(clients[advice.best.model], index))


def sampled(queries: Sequence[Query], qrels: Qrels | None, wanted: Wanted) -> list[Query]:
    """Return the sample in random order: queries with a relevant document where there are judgments.

    Raises:
        EvaluationError: there are none.
    """
    fit = [
        one for one in queries if qrels is None or any(g > 0 for g in qrels.judgments.get(one.query_id, {}).values())
    ]
    if not fit:
        raise EvaluationError("no query has a relevant document by the judgments: are they of the same query set?")
    return random.Random(wanted.seed).sample(fit, min(wanted.sample, len(fit)))  # noqa: S311 - no secret


def with_judgments(advice: Advice, qrels: Qrels, weights: Sequence[float]) -> Advice:
    """Return the advice with what judgments say: the verdict, and the best setting that is fast enough.

    Args:
        advice: with the samples.
        qrels: judgments of the sample's queries.
        weights: of the first pass in a linear blend.

    Raises:
        EvaluationError: there are too few queries, or no such measure.
    """
    wanted, found = advice.wanted, advice.tried[0].found
    least = min(len(one.found) for one in advice.tried)  # where time was short, the queries that all models answered
    tried = [replace(one, found=one.found[:least]) for one in advice.tried]
    before = measured(found[:least], qrels, wanted.measure, None)
    current = measured(found[:least], qrels, wanted.measure, advice.current)
    values = {
        setting: measured(one.found, qrels, wanted.measure, setting)
        for one in tried
        for setting in grid(one.model, one.passages, fast_enough(one.costs, None), weights)
    }
    fast = {one: values[one] for one in values if one.depth in fast_enough(advice.tried_with(one).costs, wanted.p95_ms)}
    query_ids = [one.query.query_id for one in found[:least]]
    choice = choose(query_ids, before, fast, alpha=wanted.alpha) if fast else None
    orders = {one.query.query_id: one for one in found[:least]}
    first = {query_id: one.first_pass() for query_id, one in orders.items()}
    reranked = {query_id: order_of(one, advice.current) for query_id, one in orders.items()}
    return replace(
        advice,
        tried=tuple(tried),
        queries=least,
        verdict=judge(before, current, alpha=wanted.alpha),
        choice=choice,
        before=before,
        values={advice.current: current, **values},
        judged=(judged_share(first, qrels.judgments), judged_share(reranked, qrels.judgments)),
    )


def order_of(found: Found, setting: Setting) -> list[str]:
    """Return the ids of a query's hits in the order of a setting."""
    return found.ranked(setting.depth, setting.blend, setting.weight)


def current_setting(client: Client, index: str, model: str, passages: str) -> Setting:
    """Return the options of an index as a setting: what ``rerank=True`` does now."""
    options = replace(client.options_of(index), pipeline="mono")
    blend = client.reranker.identity(options)["blend"]
    method, weight = blend if isinstance(blend, list) else ("replace", 0.0)
    return Setting(model, passages, options.least_depth, str(method), float(weight))


def _tried(
    clients: Mapping[str, Client], index: str, queries: Sequence[Query], wanted: Wanted, advance: Callable[[], None]
) -> list[Tried]:
    """Search and time the sample with each model, and with other passages settings where hits are long."""
    tried = []
    until_s = time.monotonic() + wanted.budget_s
    for place, (name, client) in enumerate(clients.items()):
        base = client.options_of(index)
        remaining_s = max(0.0, until_s - time.monotonic()) / (len(clients) - place)
        one = _try(client, index, name, base, queries, wanted, remaining_s, advance)
        tried.append(one)
        if _is_long(one.found) and not isinstance(base.passages, Passages):
            other = "off" if client.reranker.scorer(cached=False).advice.passages else "maxp"
            changed = replace(base, passages=Passages.of(other))
            if one.passages != other:
                tried.append(_try(client, index, name, changed, queries, wanted, remaining_s / 2, advance))
    return tried


def _try(
    client: Client,
    index: str,
    model: str,
    base: Rerank,
    queries: Sequence[Query],
    wanted: Wanted,
    budget_s: float,
    advance: Callable[[], None],
) -> Tried:
    most = max(*wanted.depths, base.least_depth)
    options = sampling_options(base, most)
    found = search_sample(client, index, queries, options, budget_s=budget_s * SEARCHING, advance=advance)
    depths = sorted({*wanted.depths, base.least_depth})
    timed = [one.query for one in found if one.candidates]
    costs = measure_costs(client, index, timed, options, depths, budget_s=budget_s * (1 - SEARCHING))
    first = percentiles([one.took_ms for one in found])
    return Tried(model, _written(base), tuple(found), costs, *first, sum(one.encoded for one in found))


def _written(options: Rerank) -> str:
    """Return the passages setting as it is written in a settings file; other numbers than usual are left out."""
    if isinstance(options.passages, Passages):
        return options.passages.aggregation
    return options.passages or "off"


def _is_long(found: Sequence[Found]) -> bool:
    hits = sum(len(one.candidates) for one in found)
    return hits > 0 and sum(one.long for one in found) / hits > LONG_SHARE


def _change(found: Sequence[Found], current: Setting) -> Difference | None:
    return difference([one.first_pass() for one in found], [order_of(one, current) for one in found])


def _agreement(tried: Sequence[Tried], current: Setting) -> dict[str, Difference]:
    """Return how much the other models' orders differ from the current one's, of the queries that both answered."""
    agreement = {}
    for one in tried[1:]:
        count = min(len(one.found), len(tried[0].found))
        orders = [
            [sample.ranked(current.depth, "replace", 0.0) for sample in other.found[:count]]
            for other in (tried[0], one)
        ]
        if (found := difference(*orders)) is not None:
            agreement[f"{one.model}, passages {one.passages}"] = found
    return agreement
