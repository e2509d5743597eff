"""A plan in words: one screen for people, and values for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from osrerank.decision.capacity.plan import Choice, Plan
from osrerank.decision.capacity.predict import MOST_LOAD, Prediction
from osrerank.decision.capacity.rates import Rate, Rates

UNITS = {"workers": "worker", "states": "searching process", "gpus": "GPU"}
PLURALS = {"workers": "workers", "states": "searching processes", "gpus": "GPUs"}
DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60


def lines(plan: Plan) -> list[str]:
    """Return the screen."""
    traffic, rates = plan.wanted.traffic, plan.rates
    cached = f", {traffic.hit_rate:.0%} of the searches cached" if traffic.hit_rate else ""
    head = (
        f"{traffic.searches_per_s:g} searches a second of {traffic.depth} candidates of {rates.document_words:.0f} "
        f"words{cached}: p95 at most {plan.wanted.p95_ms:g} ms"
    )
    parts = (_rates(rates, traffic.depth), _workers(plan), _states(plan), _gpus(plan), _stored(plan))
    return [head, *(f"  {line}" for part in parts for line in part)]


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan in JSON's types."""
    wanted = asdict(plan.wanted)
    rates = asdict(plan.rates)
    for rate in (rates["whole"], *([rates["states"]["known"]] if rates["states"] else [])):
        del rate["spread"]
    return {
        "wanted": {**wanted.pop("traffic"), **wanted},
        "rates": {
            **rates,
            "pairs_per_s": _pairs_per_s(plan.rates.whole, 100),
            "variation": plan.rates.whole.variation,
        },
        "workers": plan.workers.as_json(),
        "states": plan.states and plan.states.as_json(),
        "gpus": plan.gpus and plan.gpus.as_json(),
        "storage": plan.storage.as_json(),
    }


def _pairs_per_s(rate: Rate, pairs: int) -> float:
    return pairs / rate.busy_s(pairs)


def _rates(rates: Rates, depth: int) -> Iterator[str]:
    size = min(depth, 100)
    where = rates.where
    if not where:
        yield f"a worker: {_pairs_per_s(rates.whole, size):,.0f} pairs a second, as given"
        return
    busy = f", load average {where['load']}" if (where.get("load") or 0) > 1 else ""
    threads = f"{rates.threads} threads" if rates.threads else where.get("backend", "")
    yield (
        f"a worker ({rates.model}, {threads}): {_pairs_per_s(rates.whole, size):,.0f} pairs a second, "
        f"{1000 * rates.whole.alone_s(size):,.0f} ms for {size} alone; measured on {where.get('cpu', '?')}{busy}"
    )


def _workers(plan: Plan) -> Iterator[str]:
    what = "without states" if plan.states else "needed"
    yield f"{what}: {_found(plan.workers)}"
    yield from (f"  {line}" for line in _around(plan.workers))


def _states(plan: Plan) -> Iterator[str]:
    if plan.states is None:
        return
    known = plan.wanted.traffic.known
    yield f"with states of {known:.0%} of the candidates, without workers: {_found(plan.states)}"
    yield from (f"  {line}" for line in _around(plan.states))


def _gpus(plan: Plan) -> Iterator[str]:
    if plan.gpus is None:
        yield "GPUs: not measured here; --gpu-pairs-per-s takes a rate that was measured elsewhere"
        return
    yield f"at {plan.wanted.gpu_pairs_per_s:,.0f} pairs a second of a GPU, not measured here: {_found(plan.gpus)}"


def _found(choice: Choice) -> str:
    """Return a number of workers and what it gives, or why there is none."""
    if choice.found is None:
        alone = choice.alone
        return (
            f"no number of {PLURALS[choice.name]} keeps the limit: a search has p95 {alone.p95_ms:,.0f} ms even alone; "
            "lower --depth, take a faster model, or raise --p95-ms"
        )
    found = choice.found
    cores = f" of {choice.threads} threads ({choice.cores} cores)" if choice.threads else ""
    return f"{_count(choice.name, found.workers)}{cores}, {found.load:.0%} busy: {_latency(found)}"


def _count(name: str, number: int) -> str:
    return f"{number:,} {UNITS[name] if number == 1 else PLURALS[name]}"


def _latency(found: Prediction) -> str:
    return f"p50 {found.p50_ms:,.0f}, p95 {found.p95_ms:,.0f}, p99 {found.p99_ms:,.0f} ms"


def _around(choice: Choice) -> Iterator[str]:
    """Yield what other loads and other numbers give."""
    if choice.found is None:
        return
    loads = ", ".join(f"{one.load:.0%}: {one.p95_ms:,.0f}" for one in choice.by_load)
    rates = " / ".join(f"{one.searches_per_s:,.1f}" for one in choice.by_load)
    yield f"p95 in ms by load: {loads} (at {rates} searches a second)"
    if choice.by_workers:
        numbers = "; ".join(f"{one.workers:,}: p95 {one.p95_ms:,.0f}, {one.load:.0%} busy" for one in choice.by_workers)
        yield f"with other numbers: {numbers}"
    if choice.by_hit_rate:
        cached = ", ".join(f"{share:.0%}: {number:,}" for share, number in choice.by_hit_rate)
        yield f"where so many searches are cached: {cached}"


def _stored(plan: Plan) -> Iterator[str]:
    scores, states = plan.storage.scores, plan.storage.states
    least, most = (_time(seconds) for seconds in scores.kept_s)
    yield (
        f"scores in Redis: {scores.new_per_s:,.0f} new ones a second; OSRERANK_CACHE_MB="
        f"{scores.redis_bytes / 1e6:.0f} keeps one for {least} to {most}, a day's take {_size(scores.day_bytes)}"
    )
    yield f"texts to workers that score whole pairs: {_size(plan.storage.broker_bytes_per_s)} a second through Redis"
    if states is not None:
        time = f"{states.core_hours:,.1f} core hours to compute" if plan.rates.threads else "computed on a GPU"
        yield (
            f"states of {plan.wanted.documents:,} documents: {_size(states.file_bytes)} on disk or in Redis (OSRERANK_"
            f"STATES_MB={states.states_mb}), or {_size(states.side_index_bytes)} in a side index; {time}"
        )
        yield f"vectors of them, where searches use these: {_size(states.vectors_bytes)} in the index"
    burstiness = plan.wanted.traffic.burstiness
    arrivals = "arrivals at random (Poisson)" if burstiness == 1 else f"burstiness {burstiness:g}"
    yield f"from a simulation of the queue, compared with real workers up to {MOST_LOAD:.0%} load; {arrivals}"


def _size(count: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count / 1e3:,.1f} KB"


def _time(seconds: float) -> str:
    for unit, name in ((DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.0f} s"
