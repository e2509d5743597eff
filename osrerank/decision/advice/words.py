"""The advice in words: one screen for people, and values for programs."""

from collections.abc import Iterator
from typing import Any

from osrerank.bench.machine import machine
from osrerank.decision.advice.advise import Advice
from osrerank.decision.advice.choose import Setting, order_of
from osrerank.decision.advice.orders import TOP, Difference, queries_for
from osrerank.decision.advice.verdict import Verdict

SHOWN = 3
MARGIN = 0.1
"""Difference in the share of judged hits from which on judgments favour one side."""


def headline(advice: Advice) -> str:
    """Return the answer in one line."""
    if advice.verdict is None:
        return f"{advice.index}: without judgments nobody knows whether reranking helps"
    sayings = {"helps": "reranking helps", "hurts": "reranking hurts", "undecided": "undecided whether reranking helps"}
    return f"{advice.index}: {sayings[advice.verdict.outcome]}"


def verdict_line(measure: str, verdict: Verdict) -> str:
    """Return the numbers of a verdict."""
    p_value = "p < .0001" if verdict.p_value < 1e-4 else f"p = {verdict.p_value:.4f}".replace("0.", ".")
    return (
        f"{measure} {verdict.before:.4f} -> {verdict.after:.4f}: {verdict.difference:+.4f} [{verdict.low:+.4f}, "
        f"{verdict.high:+.4f}], {p_value}; {verdict.better} better, {verdict.equal} equal, {verdict.worse} worse"
    )


def decides(verdict: Verdict) -> str:
    """Return how many queries would decide; empty where it is decided."""
    if verdict.outcome != "undecided":
        return ""
    reach = f"{verdict.queries} queries find a difference of {verdict.detectable:.4f} in four of five cases"
    if verdict.more_queries is None:
        return f"no number of queries would decide a difference of {verdict.difference:+.4f}; {reach}"
    return (
        f"about {verdict.more_queries:,} more judged queries would decide it, if the difference is as measured; {reach}"
    )


def lines(advice: Advice) -> list[str]:
    """Return the screen."""
    return [headline(advice), *(f"  {line}" for line in (*_answer(advice), *_costs(advice), *_notes(advice)))]


def _answer(advice: Advice) -> Iterator[str]:
    measure = advice.wanted.measure
    if advice.verdict is None:
        yield from _orders(advice)
        return
    yield f"as it is now ({advice.current}), {advice.queries} queries:"
    yield verdict_line(measure, advice.verdict)
    if said := decides(advice.verdict):
        yield said
    limit = f" with a 95th percentile of at most {advice.wanted.p95_ms:g} ms" if advice.wanted.p95_ms else ""
    choice = advice.choice
    if choice is None:
        least = min((cost.p95_ms, depth) for depth, cost in advice.tried[0].costs.items() if depth)
        yield f"no setting is fast enough{limit}: depth {least[1]} has {least[0]:.0f} ms"
        return
    yield f"best{limit}: {choice.setting}"
    yield f"promised on unseen queries (cross-validation): {choice.promised:.4f} [{choice.low:.4f}, {choice.high:.4f}]"
    yield f"{choice.verdict.outcome}: {verdict_line(measure, choice.verdict)}"
    if said := decides(choice.verdict):
        yield said


def _orders(advice: Advice) -> Iterator[str]:
    """Yield what can be known without judgments."""
    if advice.change:
        yield f"reranking changes the order ({advice.current}, {advice.queries} queries): {_differs(advice.change)}"
    for name, found in advice.agreement.items():
        yield f"{advice.current.model} and {name}: {_differs(found)}"
    yield (
        f"about {queries_for(0.05):,} judged queries find a difference of .05 nDCG@10, {queries_for(0.1):,} one of .1 "
        "(with the spread that is usual)"
    )


def _differs(found: Difference) -> str:
    return (
        f"{found.same_first:.0%} have the same first hit, {found.overlap:.0%} of the first {TOP} are in both, "
        f"Kendall's tau {found.tau:.2f}"
    )


def _costs(advice: Advice) -> Iterator[str]:
    cost, first = advice.cost, advice.tried_with(advice.best).costs[0]
    rate = advice.wanted.searches_per_s
    memory = f", {advice.memory / 1e6:,.0f} MB of memory" if advice.memory else ""
    yield (
        f"cost: p50 {cost.p50_ms:.0f} ms, p95 {cost.p95_ms:.0f} ms (first pass {first.p50_ms:.0f} and "
        f"{first.p95_ms:.0f}); {cost.cores(rate):.2f} cores for {rate:g} searches a second{memory}"
    )
    tried = advice.tried_with(advice.best)
    if tried.encoded:
        yield (
            f"first searches of new documents, depth {max(tried.costs)}: p50 {tried.first_p50_ms:.0f} ms, p95 "
            f"{tried.first_p95_ms:.0f} ms, {tried.encoded:,} documents encoded"
        )
    if advice.states:
        yield (
            f"states of all {advice.states.documents:,} documents: about {advice.states.seconds:,.0f} s here and "
            f"{advice.states.stored / 1e6:,.1f} MB (osrerank states build)"
        )


def recall_line(advice: Advice) -> str:
    """Return what the sources of candidates find; empty without judgments."""
    if not advice.recall:
        return ""
    shares = ", ".join(f"{one.source} {one.recall:.3f}" for one in advice.recall)
    found = f"recall of the first {advice.recall[0].depth} candidates: {shares}"
    if len(advice.recall) == 1:
        return f"{found}; the index has no vectors of this model to search by, too (osrerank vectors build)"
    return f'{found}; rerank={{"candidates": {{"vectors": {advice.recall[0].depth}}}}} reranks both'


def _notes(advice: Advice) -> Iterator[str]:
    if said := recall_line(advice):
        yield said
    yield from (f"not tried: {one}" for one in advice.left_out)
    if advice.queries < advice.asked:
        yield f"time was short: {advice.queries} of {advice.asked} queries were searched; --budget-s gives more"
    before, after = advice.judged
    if advice.verdict and before - after > MARGIN:
        yield (
            f"judged are {before:.0%} of the first pass's ten first hits and {after:.0%} of the reranked ones; a hit "
            "without a judgment counts as not relevant, so reranking may be better than it looks: judge the --pool"
        )
    if (setting := advice.recommended_setting) is not None and setting.model != advice.current.model:
        yield f"the model is no option of a search: set OSRERANK_MODEL={setting.model}"


def examples(advice: Advice) -> tuple[list[int], list[int]]:
    """Return the places of the queries that gain and that lose most by the best setting."""
    if advice.before is None or advice.best not in advice.values:
        return [], []
    gains = advice.values[advice.best] - advice.before
    order = gains.argsort(kind="stable")
    losing = [int(place) for place in order[:SHOWN] if gains[place] < 0]
    gaining = [int(place) for place in order[::-1][:SHOWN] if gains[place] > 0]
    return gaining, losing


def example_lines(advice: Advice) -> list[str]:
    """Return the queries that gain and lose most, a line each."""
    if advice.before is None:
        return []
    found = advice.tried_with(advice.best).found
    values, said = advice.values[advice.best], []
    for name, places in zip(("gains most", "loses most"), examples(advice), strict=True):
        said += [
            f"  {name}: {advice.before[place]:.2f} -> {values[place]:.2f} {found[place].query.text}" for place in places
        ]
    return said


def as_json(advice: Advice) -> dict[str, Any]:
    """Return the advice as values that JSON knows."""
    gaining, losing = examples(advice)
    return {
        "index": advice.index,
        "measure": advice.wanted.measure,
        "p95_ms": advice.wanted.p95_ms,
        "decision": advice.verdict.outcome if advice.verdict else None,
        "queries": advice.queries,
        "current": _setting(advice.current),
        "verdict": advice.verdict.as_json() if advice.verdict else None,
        "choice": advice.choice.as_json() if advice.choice else None,
        "recommended": dict(advice.recommended),
        "cost": {
            **advice.cost.as_json(),
            "searches_per_s": advice.wanted.searches_per_s,
            "cores": advice.cost.cores(advice.wanted.searches_per_s),
            "memory_bytes": advice.memory,
            "states": advice.states.as_json() if advice.states else None,
        },
        "settings": [
            {**_setting(one), "mean": float(values.mean()), "p95_ms": _p95(advice, one)}
            for one, values in advice.values.items()
        ],
        "judged": {"first_pass": advice.judged[0], "reranked": advice.judged[1]},
        "change": advice.change.as_json() if advice.change else None,
        "recall": [one.as_json() for one in advice.recall],
        "agreement": {name: one.as_json() for name, one in advice.agreement.items()},
        "left_out": list(advice.left_out),
        "gains": [_example(advice, place) for place in gaining],
        "losses": [_example(advice, place) for place in losing],
        "machine": machine(),
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {"model": setting.model, **setting.options()}


def _p95(advice: Advice, setting: Setting) -> float | None:
    cost = advice.tried_with(setting).costs.get(setting.depth)
    return cost.p95_ms if cost else None


def _example(advice: Advice, place: int) -> dict[str, Any]:
    found = advice.tried_with(advice.best).found[place]
    assert advice.before is not None  # examples have values
    return {
        "query_id": found.query.query_id,
        "query": found.query.text,
        "before": float(advice.before[place]),
        "after": float(advice.values[advice.best][place]),
        "first_pass": found.first_pass()[:TOP],
        "reranked": order_of(found, advice.best)[:TOP],
    }
