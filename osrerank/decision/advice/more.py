"""Pairs of the best candidates, and documents by their best sentences, tried where they make sense and time allows."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from osrerank.client import Client
from osrerank.decision.advice.choose import Setting, grid
from osrerank.decision.advice.costs import Cost, measured_cost
from osrerank.decision.advice.sample import Found, percentiles, sampling_options, search_sample
from osrerank.decision.advice.tried import Tried, Wanted
from osrerank.errors import OsrerankError
from osrerank.evaluation.tune import Weights
from osrerank.options.passages import Passages
from osrerank.options.rerank import MONO_DUO, Blend, Rerank
from osrerank.options.sentences import Sentences
from osrerank.settings import DEFAULT_DUO_MODEL, DEFAULT_MODEL
from osrerank.types import Query

LONG_SHARE = 0.05
"""Share of long hits from which on passages and sentences are tried."""
DUO_DEPTHS = (10, 20)
SENTENCES_DEPTH = 20
"""The greatest depth at which sentences are tried: each sentence of a hit is an inference."""
SENTENCES = tuple(
    Weights(second, share, third) for second, third in ((0.0, 0.0), (0.2, 0.3)) for share in (0.1, 0.3, 0.5, 0.7, 0.9)
)
PROBED = 5
"""Searches by which the time of a sample is guessed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to search that is tried beside the current one.

    Attributes:
        name: what it is called where it is left out.
        options: of its searches.
        depths: that its scores are used at, the options' own last.
        is_current: whether it is what the index does now, so that it is tried however long it takes.
    """

    name: str
    options: Rerank
    depths: tuple[int, ...]
    is_current: bool = False


def try_more(
    client: Client, index: str, first: Tried, current: Setting, wanted: Wanted, *, until_s: float, is_judged: bool
) -> tuple[list[Tried], list[str]]:
    """Search and time the sample with pairs and by sentences.

    What would not be done in time, is slower than the limit or fails is left out.

    Args:
        client: of the index, with the current model.
        index: its name.
        first: the sample with the current model.
        current: what the index does now.
        wanted: what is asked for.
        until_s: when the time is spent, by the monotonic clock.
        is_judged: whether there are judgments; without them nothing can be found better than what is.

    Returns:
        What was tried, and what was left out with the reason.

    Raises:
        OsrerankError: what the index does now fails.
    """
    queries = [one.query for one in first.found]
    tried: list[Tried] = []
    left_out: list[str] = []
    trials = [*_pairs(client, index, current), *_sentences(client, index, first, wanted)]
    for trial in trials if is_judged else [one for one in trials if one.is_current]:
        try:
            if reason := "" if trial.is_current else _too_slow(client, index, trial, first, wanted, until_s):
                left_out.append(f"{trial.name}, {reason}")
                continue
            tried.append(_try(client, index, trial, first, queries))
        except OsrerankError as error:
            if trial.is_current:
                raise
            left_out.append(f"{trial.name}: {error}")
    return tried, left_out


def settings_of(tried: Tried, current: Setting, weights: Sequence[float]) -> list[Setting]:
    """Return the settings whose scores a sample has, in the order of preference at equal quality.

    Args:
        tried: the sample.
        current: what the index does now; pairs are compared after its depth and blend.
        weights: of the first pass in a linear blend.
    """
    depths = sorted(depth for depth in tried.costs if depth)
    if tried.duo_depth:
        return [replace(current, duo_depth=tried.duo_depth)]
    if tried.by_sentences:
        one = replace(current, blend="replace", weight=0.0, duo_depth=0)
        return [replace(one, depth=depth, sentences=mixed) for depth in depths for mixed in SENTENCES]
    return grid(tried.model, tried.passages, depths, weights)


def is_long(found: Sequence[Found]) -> bool:
    """Return whether more than one hit in twenty may be longer than a model reads."""
    hits = sum(len(one.candidates) for one in found)
    return hits > 0 and sum(one.long for one in found) / hits > LONG_SHARE


def _pairs(client: Client, index: str, current: Setting) -> Iterator[Trial]:
    """Yield pairs after the current depth and blend: where the index has them, or there is a model for them."""
    base, settings = client.options_of(index), client.reranker.settings
    fits = settings.duo_model != DEFAULT_DUO_MODEL or client.reranker.scorer(cached=False).model == DEFAULT_MODEL
    depths = {*(DUO_DEPTHS if fits or current.duo_depth else ()), current.duo_depth} - {0}
    weight = None if current.blend in ("replace", "rrf") else current.weight
    blend: Blend = current.blend  # type: ignore[assignment]  # one of its methods
    for depth in sorted(one for one in depths if one <= current.depth):
        options = replace(sampling_options(base, current.depth), blend=blend, blend_weight=weight)
        options = replace(options, pipeline=MONO_DUO, duo_depth=depth, duo_budget_ms=None)
        yield Trial(f"pairs of the first {depth}", options, (current.depth,), depth == current.duo_depth)


def _sentences(client: Client, index: str, first: Tried, wanted: Wanted) -> Iterator[Trial]:
    """Yield sentences where hits are long."""
    base = client.options_of(index)
    depths = tuple(sorted(depth for depth in wanted.depths if depth <= SENTENCES_DEPTH))
    can_split = importlib.util.find_spec("sentencex") is not None
    if depths and can_split and is_long(first.found) and not isinstance(base.passages, Passages):
        yield Trial("sentences", replace(sampling_options(base, depths[-1]), sentences=Sentences()), depths)


def _too_slow(client: Client, index: str, trial: Trial, first: Tried, wanted: Wanted, until_s: float) -> str:
    """Return why there is no time for a trial, by its first searches; empty where there is."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        return "no time was left: --budget-s gives more"
    queries = [one.query for one in first.found[:PROBED]]
    client.reranker.warm_up(trial.options)
    began = time.monotonic()
    search_sample(client, index, queries, trial.options, budget_s=left_s)
    needed_s = (time.monotonic() - began) / len(queries) * len(first.found)
    if needed_s > left_s:
        return f"about {needed_s:,.0f} s for {len(first.found)} queries, {left_s:,.0f} are left: --budget-s gives more"
    cost = measured_cost(client, index, queries, trial.options, left_s)
    if wanted.p95_ms and cost.p50_ms > wanted.p95_ms:
        return f"a search takes {cost.p50_ms:.0f} ms"
    return ""


def _try(client: Client, index: str, trial: Trial, first: Tried, queries: Sequence[Query]) -> Tried:
    options = trial.options
    size = max(len(one.candidates) for one in first.found)
    found = search_sample(client, index, queries, options, budget_s=float("inf"), size=size)
    timed = [one.query for one in found if one.candidates]
    costs: dict[int, Cost] = {0: first.costs[0]}
    for depth in trial.depths:
        costs[depth] = measured_cost(client, index, timed, replace(options, depth=depth), float("inf"))
    taken = percentiles([one.took_ms for one in found])
    encoded = sum(one.encoded for one in found)
    duo_depth = options.duo_depth if options.pipeline == MONO_DUO else 0
    by_sentences = options.sentences is not None
    return Tried(first.model, first.passages, tuple(found), costs, *taken, encoded, duo_depth, by_sentences)
