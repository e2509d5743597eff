"""A sample of queries, searched once to the greatest depth: every smaller depth and every blend follows from it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.advice.verdict import LEAST_QUERIES
from osrerank.errors import ConfigError
from osrerank.evaluation.records import Record
from osrerank.evaluation.tune import Evidence, Weights
from osrerank.options.rerank import MONO_DUO, Rerank
from osrerank.response import FIRST_PASS, parse_hit, squash, text_of
from osrerank.stages.interpolate import BlendStage, Method
from osrerank.types import Candidate, Query, Ranking, StageScore

LONG_WORDS = 300
"""Words from which on a document may be longer than a model reads."""
MONO = "mono"


@dataclass(frozen=True, slots=True)
class Found:
    """A query's hits with the scores of first pass and model.

    Attributes:
        query: that was searched.
        candidates: in first-pass order, with the model's score behind the first pass's where it has one.
        texts: of the hits, as the model reads them.
        took_ms: wall time of the search, at the greatest depth.
        encoded: documents whose states were computed.
        long: how many hits have long texts.
        order: as the search returned it, where pairs were compared; otherwise empty.
        sentences: the values of the hits' best sentences, in first-pass order; None of a search by whole texts.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    texts: Mapping[str, str]
    took_ms: float
    encoded: int
    long: int
    order: tuple[str, ...] = ()
    sentences: Evidence | None = None

    def first_pass(self) -> list[str]:
        """Return the ids in first-pass order."""
        return [candidate.doc_id for candidate in self.candidates]

    def ranked(self, depth: int, blend: str, weight: float) -> list[str]:
        """Return the ids in the order that a search would have them in.

        Args:
            depth: candidates that are reranked.
            blend: ``replace``, or a method of `BlendStage`.
            weight: of the first pass.
        """
        block, rest = self.candidates[:depth], self.candidates[depth:]
        scored = sorted((one for one in block if len(one.trace) > 1), key=lambda one: (-one.score, one.rank))
        below = [one for one in block if len(one.trace) == 1]
        if blend == "replace" or not scored:
            return [one.doc_id for one in (*scored, *below, *rest)]
        order = [replace(one, rank=rank) for rank, one in enumerate((*scored, *below, *rest), start=1)]
        method: Method = blend  # type: ignore[assignment]  # one of its methods
        blended = BlendStage(method, weight, depth).rerank(Ranking(self.query, tuple(order)))
        return [one.doc_id for one in blended.candidates]

    def by_sentences(self, depth: int, weights: Weights) -> list[str]:
        """Return the ids in the order that a search by sentences would have them in."""
        assert self.sentences is not None  # a search by sentences
        one = self.sentences
        block = Evidence(one.query_id, one.doc_ids[:depth], one.first_pass[:depth], one.best[:depth])
        return [*(block.doc_ids[place] for place in block.order(weights)), *one.doc_ids[depth:]]


def sampling_options(options: Rerank, depth: int) -> Rerank:
    """Return options under which a search shows the model's scores of as many candidates, and nothing else.

    Raises:
        ConfigError: the options rerank by sentences, in OpenSearch, or by a pipeline of one's own.
    """
    if not isinstance(options.pipeline, str) or options.sentences is not None or options.search_pipeline is not None:
        reason = (
            "advice begins with one model over documents or passages: leave out sentences, via and your own pipeline"
        )
        raise ConfigError(reason, setting="rerank", source="settings file")
    return replace(
        options,
        pipeline=MONO,
        depth=depth,
        blend="replace",
        cache=False,
        deadline_ms=None,
        mono_budget_ms=None,
        min_score=None,
        min_probability=None,
        cutoff=None,
        interleave=None,
        explain=False,
        on_failure="raise",
    )


def search_sample(
    client: Client,
    index: str,
    queries: Sequence[Query],
    options: Rerank,
    *,
    budget_s: float,
    size: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Found]:
    """Search queries until the time is spent, but ten at least.

    Those that find nothing are among them, without candidates.

    Args:
        client: of the index.
        index: its name.
        queries: to search.
        options: as `sampling_options` returns them.
        budget_s: seconds after which no more searches begin.
        size: hits of a search; None for those that are reranked.
        advance: called after each query.
    """
    client.reranker.warm_up(options)
    until_s = time.monotonic() + budget_s
    found: list[Found] = []
    for query in queries:
        if len(found) >= LEAST_QUERIES and time.monotonic() >= until_s:
            break
        began = time.perf_counter()
        response = client.search(query.text, index=index, size=size or options.least_depth, rerank=options)
        found.append(_found(query, response, options, (time.perf_counter() - began) * 1000))
        advance()
    return found


def _found(query: Query, response: Mapping[str, Any], options: Rerank, took_ms: float) -> Found:
    hits = response["hits"]["hits"]
    texts = {hit["_id"]: text_of(parse_hit(hit), options.fields or ()) or "" for hit in hits}
    candidates = sorted((_candidate(hit, texts[hit["_id"]]) for hit in hits), key=lambda one: one.rank)
    stages = response["rerank"]["stages"]
    return Found(
        query,
        tuple(candidates),
        texts,
        took_ms,
        sum(stage.get("encoded", 0) for stage in stages),
        sum(len(text.split()) > LONG_WORDS for text in texts.values()),
        tuple(hit["_id"] for hit in hits) if options.pipeline == MONO_DUO else (),
        None if options.sentences is None else _sentences(query, candidates, hits, options.sentences.scores),
    )


def _sentences(
    query: Query, candidates: Sequence[Candidate], hits: Sequence[Mapping[str, Any]], scores: str
) -> Evidence:
    """Return the values of the hits' best sentences, read as from a run's side file."""
    marks = {hit["_id"]: hit.get("_rerank", {}) for hit in hits}
    found = [
        {
            "doc_id": one.doc_id,
            FIRST_PASS: {"score": one.trace[0].score, "rank": one.rank},
            "stages": marks[one.doc_id],
        }
        for one in candidates
    ]
    return Evidence.of(Record(query.query_id, {"candidates": found}), scores=scores)


def _candidate(hit: Mapping[str, Any], text: str) -> Candidate:
    """Return a hit as a candidate at its first-pass rank."""
    first = hit.get("_rerank", {}).get(FIRST_PASS) or {"score": hit["_score"] or 0.0, "rank": 1}
    trace = [StageScore(FIRST_PASS, first["score"], first["rank"], squash(first["score"]))]
    if (model := hit.get("_rerank", {}).get(MONO)) is not None:
        trace.append(StageScore(MONO, model["score"], model["rank"], 0.0, level=1))
    return Candidate(hit["_id"], text, trace[-1].score, first["rank"], tuple(trace))


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile; NaN without values."""
    if not values:
        return float("nan"), float("nan")
    return float(np.percentile(values, 50)), float(np.percentile(values, 95))
