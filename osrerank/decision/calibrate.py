"""Calibrate an index: search judged queries, and fit the map from a hit's score to its probability of relevance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.fitting import (
    FITS,
    Bin,
    Indices,
    ScoredHits,
    calibration_error,
    held_out_probabilities,
    log_loss,
    precision_thresholds,
    reliability,
)
from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation.folds import split_into_blocks
from osrerank.options.rerank import NO_STAGES, VECTORS_MONO, Rerank
from osrerank.response import FIRST_PASS
from osrerank.stages.interpolate import VECTORS_BLEND
from osrerank.thresholds.calibration import IndexCalibration, mapping_digest, model_digest
from osrerank.thresholds.maps import Floats
from osrerank.types import Qrels, Query

FOLDS = 5
MIN_RELEVANT = 20
"""The minimum number of relevant hits for a fit."""
MONO_STAGE, BLEND_STAGE = "mono", "blend"
"""The stages that score by a cross-encoder, and that blend a model's score with the first pass."""
Row = tuple[int, float, float, bool]
"""A hit: the index of its query, its score, the model's probability, and whether it is relevant."""


@dataclass(frozen=True, slots=True)
class JudgedHits:
    """The reranked hits of the judged queries.

    Attributes:
        scored: the scores and judgments of n hits.
        model_probabilities: the probabilities of the same hits before calibration, as the model computed them ``(n,)``.
        query_ids: the queries' ids. ``query_ids[scored.queries[i]]`` is the query of hit i.
        stage: the name of the stage that computed the scores.
    """

    scored: ScoredHits
    model_probabilities: Floats
    query_ids: tuple[str, ...]
    stage: str


@dataclass(frozen=True, slots=True)
class CalibrationFit:
    """A calibration, and the evidence that its probabilities are reliable.

    Attributes:
        calibration: the map from score to probability, fitted to all judged queries.
        before: the bins of the reliability diagram before calibration.
        after: the bins of the reliability diagram with calibrated probabilities, on held-out queries.
        losses: the log loss of each kind of map on held-out queries, such as ``{"platt": 0.31, "isotonic": 0.33}``. The
            kind with the lowest loss was chosen.
    """

    calibration: IndexCalibration
    before: tuple[Bin, ...]
    after: tuple[Bin, ...]
    losses: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the evidence as JSON values."""
        return {
            **self.calibration.evidence,
            "kind": self.calibration.map.name,
            "log_loss": dict(self.losses),
            "before": [asdict(bin_) for bin_ in self.before],
            "after": [asdict(bin_) for bin_ in self.after],
        }


def calibrate(
    client: Client,
    index: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    track: Callable[[Sequence[Query]], Any] = iter,
) -> CalibrationFit:
    """Search the judged queries with the index's options, and fit probabilities to the scores of their hits.

    Queries without judgments are ignored. Hits without a judgment count as not relevant. ``track`` wraps the iteration
    over the queries to show progress.

    Raises:
        ConfigError: the index's pipeline is ``none`` or custom, so no stage returns probabilities.
        EvaluationError: no query has hits, or there are too few judged queries or relevant hits.
    """
    # the fit needs all hits, each with its score
    options = replace(client.options_of(index), min_score=None, min_probability=None, cutoff=None)
    options = replace(options, explain=False, deadline_ms=None, on_failure="raise")
    if options.pipeline == NO_STAGES or not isinstance(options.pipeline, str):
        reason = f"rerank.pipeline of the index {index} is none or your own, which cannot be calibrated; set it to auto"
        raise ConfigError(reason, setting="rerank.pipeline", source="settings file")
    judged_queries = [query for query in queries if query.query_id in qrels.judgments]
    fit = fit_probabilities(collect_hits(client, index, track(judged_queries), qrels, options))
    with client.searcher.service_for(index) as service:
        identity = service.identity(options)
    mappings = client.indices.get_mapping(index=index)
    model, mapping = model_digest(identity, options), mapping_digest(mappings, options)
    return replace(fit, calibration=replace(fit.calibration, model=model, mapping=mapping))


def collect_hits(client: Client, index: str, queries: Any, qrels: Qrels, options: Rerank) -> JudgedHits:
    """Search queries, and return their hits with scores, probabilities and judgments.

    Raises:
        EvaluationError: no query has hits.
    """
    with client.searcher.service_for(index) as service:
        blend = service.identity(options)["blend"]  # such as ["linear", 0.5], or None
    is_linear = isinstance(blend, list) and blend[0] == "linear"
    is_vectors_mono = options.pipeline in VECTORS_MONO
    rows: list[Row] = []
    query_ids: list[str] = []
    score_stage = ""
    # score_stage: the stage whose score is calibrated; model_stage: the stage whose probability this replaces
    for query in queries:
        response = client.search(query.text, index=index, size=options.max_depth, rerank=options, _source=False)
        if not response["hits"]["hits"]:
            continue
        if is_vectors_mono:  # the cross-encoder's score can be blended with that of the vectors
            model_stage = MONO_STAGE
            is_blended = any(report["name"] == VECTORS_BLEND for report in response["rerank"]["stages"])
            score_stage = VECTORS_BLEND if is_blended else MONO_STAGE
        else:
            model_stage = response["rerank"]["stages"][0]["name"]
            score_stage = BLEND_STAGE if is_linear else model_stage
        rows += _list_rows(len(query_ids), response, qrels.judgments[query.query_id], model_stage, score_stage)
        query_ids.append(query.query_id)
    if not rows:
        raise EvaluationError(
            f"no judged query has hits in the index {index}; pass queries and judgments that are meant for this index"
        )
    query_indices, scores, probabilities, relevant = (np.array(column) for column in zip(*rows, strict=True))
    scored = ScoredHits(scores=scores, relevant=relevant, queries=query_indices.astype(np.intp))
    return JudgedHits(scored, probabilities, tuple(query_ids), score_stage)


def _list_rows(
    query_index: int, response: Mapping[str, Any], judged: Mapping[str, int], model_stage: str, score_stage: str
) -> list[Row]:
    """Return a row for each reranked hit, with ``score_stage``'s score and ``model_stage``'s probability."""
    rows = []
    for hit in response["hits"]["hits"]:
        entries = hit["_rerank"]  # the hit's score in each stage
        is_reranked = entries.keys() != {FIRST_PASS}
        if is_reranked and score_stage in entries:
            is_relevant = judged.get(hit["_id"], 0) > 0
            rows.append((query_index, entries[score_stage]["score"], entries[model_stage]["probability"], is_relevant))
    return rows


def fit_probabilities(hits: JudgedHits) -> CalibrationFit:
    """Fit each kind of map, and choose the kind that fits held-out queries best.

    The calibration's digests of the model and the mapping stay empty, for the caller to set.

    Raises:
        EvaluationError: there are too few queries or fewer than `MIN_RELEVANT` relevant hits, or all hits are relevant.
    """
    scored = hits.scored
    n_relevant, n_queries = int(scored.relevant.sum()), len(hits.query_ids)
    if n_relevant < MIN_RELEVANT or n_queries < 2 * FOLDS or n_relevant == len(scored.relevant):
        raise EvaluationError(
            f"{n_queries} judged queries with {n_relevant} relevant hits are too few to fit probabilities: at least "
            f"{2 * FOLDS} queries, {MIN_RELEVANT} relevant hits and a hit that is not relevant are needed; judge more"
        )
    folds = _fold_indices(hits.query_ids)
    held_out = {kind: held_out_probabilities(scored, fit_map, folds) for kind, fit_map in FITS.items()}
    losses = {kind: log_loss(probabilities, scored.relevant) for kind, probabilities in held_out.items()}
    best = min(losses, key=losses.__getitem__)
    before = reliability(hits.model_probabilities, scored.relevant)
    after = reliability(held_out[best], scored.relevant)
    evidence = {
        "queries": n_queries,
        "hits": len(scored.scores),
        "relevant": n_relevant,
        "ece_before": calibration_error(before),
        "ece_after": calibration_error(after),
    }
    precisions = tuple(precision_thresholds(held_out[best], scored.relevant))
    fitted_map = FITS[best](scored)
    calibration = IndexCalibration(
        hits.stage, fitted_map, model="", mapping="", precisions=precisions, evidence=evidence
    )
    return CalibrationFit(calibration, tuple(before), tuple(after), losses)


def _fold_indices(query_ids: Sequence[str]) -> list[Indices]:
    """Divide the queries into folds. Return the indices of each fold's queries in ``query_ids``."""
    indices = {query_id: index for index, query_id in enumerate(query_ids)}
    return [np.array([indices[query_id] for query_id in fold]) for fold in split_into_blocks(query_ids, FOLDS)]
