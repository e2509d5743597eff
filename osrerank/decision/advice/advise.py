"""Run a sample of queries and say whether reranking helps, with which setting, and at what cost."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osrerank.client import Client
from osrerank.decision.advice.choose import WEIGHTS, Choice, Setting, choose, measured, order_of
from osrerank.decision.advice.costs import (
    Cost,
    StatesPrice,
    fast_enough,
    measure_costs,
    memory_bytes,
    states_price,
)
from osrerank.decision.advice.more import is_long, settings_of, try_more
from osrerank.decision.advice.orders import Difference, difference, judged_share
from osrerank.decision.advice.recall import recall_by_source
from osrerank.decision.advice.sample import Found, percentiles, sampling_options, search_sample
from osrerank.decision.advice.tried import Tried, Wanted
from osrerank.decision.advice.verdict import Floats, Verdict, judge
from osrerank.errors import EvaluationError
from osrerank.evaluation.sources import SourceRecall
from osrerank.options.passages import Passages
from osrerank.options.rerank import MONO_DUO, Rerank
from osrerank.types import Qrels, Query

SEARCHING = 0.6
"""Share of the time for searching the sample; the rest is for timing."""


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
        left_out: what was not tried, and why.
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
    left_out: tuple[str, ...] = ()

    @property
    def best(self) -> Setting:
        """The chosen setting; the current one where none was chosen."""
        return self.choice.setting if self.choice else self.current

    def tried_with(self, setting: Setting) -> Tried:
        """Return the sample that a setting's scores are in."""
        return next(one for one in self.tried if one.scores == setting.scores)

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
    until_s = time.monotonic() + wanted.budget_s
    tried = _tried(clients, index, chosen, wanted, advance)
    if not any(one.candidates for one in tried[0].found):
        raise EvaluationError(f"no query of the sample found anything in {index}: are they queries of this index?")
    first_name, first = next(iter(clients.items()))
    current = current_setting(first, index, first_name, tried[0].passages)
    more, left_out = try_more(first, index, tried[0], current, wanted, until_s=until_s, is_judged=qrels is not None)
    tried += more
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
        agreement=_agreement(tried, current),
        left_out=tuple(left_out),
    )
    advice = replace(advice, change=_change(advice.tried_with(current).found, current))
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
    wanted, found = advice.wanted, advice.tried_with(advice.current).found
    least = min(len(one.found) for one in advice.tried)  # where time was short, the queries that all models answered
    tried = [replace(one, found=one.found[:least]) for one in advice.tried]
    before = measured(found[:least], qrels, wanted.measure, None)
    current = measured(found[:least], qrels, wanted.measure, advice.current)
    values = {
        setting: measured(one.found, qrels, wanted.measure, setting)
        for one in tried
        for setting in settings_of(one, advice.current, weights)
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


def current_setting(client: Client, index: str, model: str, passages: str) -> Setting:
    """Return the options of an index as a setting: what ``rerank=True`` does now."""
    options = client.options_of(index)
    blend = client.reranker.identity(replace(options, pipeline="mono"))["blend"]
    method, weight = blend if isinstance(blend, list) else ("replace", 0.0)
    pairs = options.duo_depth if options.pipeline == MONO_DUO and options.duo_depth > 1 else 0
    return Setting(model, passages, options.least_depth, str(method), float(weight), pairs)


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
        if is_long(one.found) and not isinstance(base.passages, Passages):
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


def _change(found: Sequence[Found], current: Setting) -> Difference | None:
    return difference([one.first_pass() for one in found], [order_of(one, current) for one in found])


def _agreement(tried: Sequence[Tried], current: Setting) -> dict[str, Difference]:
    """Return how much the other models' orders differ from the current one's, of the queries that both answered."""
    agreement = {}
    for one in tried[1:]:
        if one.duo_depth or one.by_sentences:
            continue
        count = min(len(one.found), len(tried[0].found))
        orders = [
            [sample.ranked(current.depth, "replace", 0.0) for sample in other.found[:count]]
            for other in (tried[0], one)
        ]
        if (found := difference(*orders)) is not None:
            agreement[f"{one.model}, passages {one.passages}"] = found
    return agreement
