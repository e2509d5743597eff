"""Write what happened to a search into ``response["rerank"]``. No other module writes there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from osrerank.response import read_took_ms
from osrerank.types import StageReport
from osrerank.types.reasons import ReasonCode, SearchWarning


@dataclass(frozen=True, slots=True)
class Report:
    """What happened to a search, and the page of hits that it returns.

    Attributes:
        applied: whether the hits were reranked: True, False or "partial".
        reason: why the hits were not reranked, or only in part. None if they were fully reranked.
        code: the code of the reason, such as ``"deadline"``. None if there is no reason.
        hits: the hits of the page. If None, the response keeps the engine's hits.
        stages: the report of each stage.
        warnings: sentences that say how the response differs from what the request asked for.
        explain: whether the response lists the pairs that a duo stage compared.
        rerank_ms: the wall time of reranking in milliseconds, which is added to ``took``.
        max_score: the highest ``_score`` on any page. It is used only if the hits were reranked.
        entries: further entries of ``response["rerank"]``, such as ``{"fields": ["title"]}``.
        ext: the entries to add to the response's ``ext``.
    """

    applied: bool | str
    reason: str | None
    code: ReasonCode | None
    hits: Sequence[Mapping[str, Any]] | None
    stages: tuple[StageReport, ...] = ()
    warnings: tuple[SearchWarning, ...] = ()
    explain: bool = False
    rerank_ms: float = 0.0
    max_score: float | None = None
    entries: Mapping[str, Any] = field(default_factory=dict)
    ext: Mapping[str, Any] = field(default_factory=dict)

    def with_entries(self, **entries: Any) -> Self:
        """Return the report with more entries for ``response["rerank"]``."""
        return replace(self, entries={**self.entries, **entries})


def write_report(response: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return a copy of the engine's response with the report's page of hits, and the report in ``["rerank"]``.

    The time of reranking is added to ``took``. Totals, aggregations and suggestions are those of the engine.
    """
    new_response = dict(response)
    is_ranked = report.applied is not False
    if is_ranked or "took" in response:
        new_response["took"] = read_took_ms(response) + round(report.rerank_ms)
    if report.hits is not None:
        new_response["hits"] = {**response["hits"], "hits": list(report.hits)}
        if is_ranked:
            new_response["hits"]["max_score"] = report.max_score
    if report.ext:
        new_response["ext"] = {**(response.get("ext") or {}), **report.ext}
    new_response["rerank"] = {
        "applied": report.applied,
        "reason": report.reason,
        "reason_code": report.code,
        "first_pass_took_ms": read_took_ms(response),
        "warnings": list(map(str, report.warnings)),
        "stages": [stage_as_json(stage, explain=report.explain) for stage in report.stages],
        **report.entries,
    }
    return new_response


def stage_as_json(report: StageReport, *, explain: bool = False) -> dict[str, Any]:
    """Return a stage's entry in ``response["rerank"]["stages"]``.

    Args:
        report: the stage's report.
        explain: whether to add the compared pairs with their probabilities.
    """
    pairs = {"pairs": report.pairs.as_json()} if explain and report.pairs is not None else {}
    # texts encoded by this search, with stored vectors, and left without vectors
    vector_counts = {name: getattr(report, name) for name in ("encoded", "known", "lacking") if getattr(report, name)}
    if "encoded" in vector_counts or "known" in vector_counts:  # report both, even if one is 0
        vector_counts = {"encoded": 0, "known": 0, **vector_counts}
    code = {} if report.code is None else {"reason_code": report.code}
    return {
        **pairs,
        **vector_counts,
        **code,
        "name": report.name,
        "applied": report.applied,
        "reason": report.reason or None,
        "model": report.model or None,
        "kind": report.kind or None,
        "candidates": report.candidates,
        "inferences": report.inferences,
        "cached": report.cached,
        "truncated": report.truncated,
        "query_truncated": report.query_truncated,
        "failed": report.failed,
        "took_ms": round(report.took_ms, 3),
    }
