"""Calibrate an index: search its judged queries, and fit the probability of relevance to the scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.fitting import (
    FITS,
    Bin,
    Groups,
    ScoredHits,
    calibration_error,
    held_out,
    log_loss,
    precisions,
    reliability,
)
from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation.folds import block_folds
from osrerank.options.rerank import NO_STAGES, VECTORS_MONO, Rerank
from osrerank.response import FIRST_PASS
from osrerank.stages.interpolate import BLENDED
from osrerank.thresholds.calibration import IndexCalibration, mapping_digest, model_digest
from osrerank.thresholds.maps import Floats
from osrerank.types import Qrels, Query

FOLDS = 5
MIN_RELEVANT = 20
"""Minimum number of relevant hits to which a probability is fitted."""
MONO, BLEND = "mono", "blend"


@dataclass(frozen=True, slots=True)
class Collected:
    """The reranked hits of the judged queries.

    Attributes:
        scored: hits with the calibrated stage's score.
        before: the model's own probabilities for the same hits, ``(n,)``.
        query_ids: the id of each query, by its number.
        stage: the name of the stage that computed the scores.
    """

    scored: ScoredHits
    before: Floats
    query_ids: tuple[str, ...]
    stage: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, and the evidence for how reliable its probabilities are.

    Attributes:
        calibration: the map from score to probability, fitted to all judged queries.
        before: how the model's own probabilities compare with the judgments.
        after: how probabilities fitted to other queries compare with the judgments.
        losses: kind of map -> its log loss on held-out queries; the map with the lowest was chosen.
    """

    calibration: IndexCalibration
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]
    losses: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the evidence as JSON values."""
        bins = {name: [asdict(bin_) for bin_ in getattr(self, name)] for name in ("before", "after")}
        return {**self.calibration.evidence, "kind": self.calibration.map.name, "log_loss": dict(self.losses), **bins}


def calibrate(
    client: Client,
    index: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    advance: Callable[[Sequence[Query]], Any] = iter,
) -> Fitted:
    """Search the judged queries with the index's options, and fit a probability.

    Args:
        client: the client of the index.
        index: name of the index to search.
        queries: the query set; queries without judgments are left out.
        qrels: judgments; a hit that is not judged counts as not relevant.
        advance: wraps the iteration over the queries, to show progress.

    Raises:
        ConfigError: the index's pipeline is ``none`` or custom, so no stage gives a probability.
        EvaluationError: no query has hits, or too few hits or queries are judged.
    """
    options = replace(client.options_of(index), min_score=None, min_probability=None, cutoff=None, on_failure="raise")
    options = replace(options, explain=False, deadline_ms=None)
    if options.pipeline == NO_STAGES or not isinstance(options.pipeline, str):
        reason = (
            f"the pipeline of {index} is none or custom, so it has no probability to calibrate: set pipeline = auto"
        )
        raise ConfigError(reason, setting="rerank.pipeline", source="settings file")
    judged = [query for query in queries if query.query_id in qrels.judgments]
    collected = collect(client, index, advance(judged), qrels, options)
    fitted = fit(collected)
    with client.searcher.serving(index) as service:
        identity = service.identity(options)
    digests = model_digest(identity, options), mapping_digest(client.indices.get_mapping(index=index), options)
    return replace(fitted, calibration=replace(fitted.calibration, model=digests[0], mapping=digests[1]))


def collect(client: Client, index: str, queries: Any, qrels: Qrels, options: Rerank) -> Collected:
    """Search queries and return their hits with scores, probabilities and judgments.

    Raises:
        EvaluationError: no query has hits.
    """
    with client.searcher.serving(index) as service:
        blend = service.identity(options)["blend"]
    is_linear = isinstance(blend, list) and blend[0] == "linear"
    is_vectors_mono = options.pipeline in VECTORS_MONO
    rows: list[tuple[int, float, float, bool]] = []
    query_ids: list[str] = []
    stage = ""
    for query in queries:
        response = client.search(query.text, index=index, size=options.max_depth, rerank=options, _source=False)
        if not response["hits"]["hits"]:
            continue
        model = MONO if is_vectors_mono else response["rerank"]["stages"][0]["name"]
        stage = BLEND if is_linear else model
        if is_vectors_mono:
            is_blended = any(report["name"] == BLENDED for report in response["rerank"]["stages"])
            stage = BLENDED if is_blended else MONO
        rows += _rows(len(query_ids), response, qrels.judgments[query.query_id], model, stage)
        query_ids.append(query.query_id)
    if not rows:
        raise EvaluationError(
            f"no judged query has hits in {index}: are the queries and judgments meant for this index?"
        )
    numbers, scores, before, relevant = (np.array(column) for column in zip(*rows, strict=True))
    return Collected(ScoredHits(scores, relevant, numbers.astype(np.intp)), before, tuple(query_ids), stage)


def _rows(
    number: int, response: Mapping[str, Any], judged: Mapping[str, int], model: str, stage: str
) -> list[tuple[int, float, float, bool]]:
    """Return query number, score, probability and relevance of each hit that a model scored."""
    marks = ((hit["_id"], hit["_rerank"]) for hit in response["hits"]["hits"])
    return [
        (number, mark[stage]["score"], mark[model]["probability"], judged.get(doc_id, 0) > 0)
        for doc_id, mark in marks
        if stage in mark and mark.keys() != {FIRST_PASS}
    ]


def fit(collected: Collected, folds: int = FOLDS) -> Fitted:
    """Fit each kind of map, and keep the one that fits held-out queries best; digests are left empty.

    Raises:
        EvaluationError: fewer than twenty hits are relevant, or all are, or there are too few queries.
    """
    scored = collected.scored
    relevant, queries = int(scored.relevant.sum()), len(collected.query_ids)
    if relevant < MIN_RELEVANT or queries < 2 * folds or relevant == len(scored.relevant):
        raise EvaluationError(
            f"no probability can be fitted to {queries} judged queries with {relevant} relevant hits: it takes "
            f"at least {2 * folds} queries, {MIN_RELEVANT} relevant hits, and a hit that is not relevant"
        )
    parts = _numbered(collected.query_ids, folds)
    out = {name: held_out(scored, fit_map, parts) for name, fit_map in FITS.items()}
    losses = {name: log_loss(probabilities, scored.relevant) for name, probabilities in out.items()}
    chosen = min(losses, key=losses.__getitem__)
    before, after = (reliability(probabilities, scored.relevant) for probabilities in (collected.before, out[chosen]))
    evidence = {
        "queries": queries,
        "hits": len(scored.scores),
        "relevant": relevant,
        "ece_before": calibration_error(before),
        "ece_after": calibration_error(after),
    }
    pairs = tuple(precisions(out[chosen], scored.relevant))
    calibration = IndexCalibration(collected.stage, FITS[chosen](scored), "", "", pairs, evidence)
    return Fitted(calibration, tuple(before), tuple(after), losses)


def _numbered(query_ids: Sequence[str], count: int) -> list[Groups]:
    """Return the query numbers of each fold."""
    numbers = {query_id: number for number, query_id in enumerate(query_ids)}
    return [np.array([numbers[query_id] for query_id in fold]) for fold in block_folds(query_ids, count)]
