"""Write what happened in a search into its response: all of ``response["rerank"]`` comes from here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from osrerank.response import took_of
from osrerank.types import StageReport
from osrerank.types.reasons import ReasonCode, SearchWarning


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a search, with the page that it returns.

    Attributes:
        applied: whether the models made the order: True, False or "partial".
        reason: why they did not, or only in part; None if they did.
        code: the kind of that reason.
        hits: the hits of the page; None keeps those of the response.
        stages: what each stage did.
        warnings: sentences that say where the answer differs from the request.
        explain: whether the response has the pairs that a duo stage compared.
        rerank_ms: wall time that reranking took, in milliseconds; it is added to ``took``.
        max_score: the highest ``_score`` of all pages, if the hits were reranked.
        entries: further entries of ``response["rerank"]``: name -> value.
        ext: entries that are added to the response's ``ext``.
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
        """Return the report with further entries of ``response["rerank"]``."""
        return replace(self, entries={**self.entries, **entries})


def write_report(response: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return a new response with the page of a report, and the report as ``response["rerank"]``.

    Totals, aggregations and suggestions stay as they are; ``took`` grows by the time of reranking, and ``ext`` may gain
    entries.
    """
    answer = dict(response)
    is_ranked = report.applied is not False
    if is_ranked or "took" in response:
        answer["took"] = took_of(response) + round(report.rerank_ms)
    if report.hits is not None:
        highest = {"max_score": report.max_score} if is_ranked else {}
        answer["hits"] = {**response["hits"], **highest, "hits": list(report.hits)}
    if report.ext:
        answer["ext"] = {**(response.get("ext") or {}), **report.ext}
    answer["rerank"] = {
        "applied": report.applied,
        "reason": report.reason,
        "reason_code": report.code,
        "first_pass_took_ms": took_of(response),
        "warnings": list(map(str, report.warnings)),
        "stages": [stage_as_json(stage, explain=report.explain) for stage in report.stages],
        **report.entries,
    }
    return answer


def stage_as_json(report: StageReport, *, explain: bool = False) -> dict[str, Any]:
    """Return a stage's entry in ``response["rerank"]["stages"]``.

    Args:
        report: what the stage did.
        explain: whether to add the pairs that it compared, with their probabilities.
    """
    pairs = {"pairs": report.pairs.as_json()} if explain and report.pairs is not None else {}
    vectors = {name: count for name in ("encoded", "known", "lacking") if (count := getattr(report, name))}
    if "encoded" in vectors or "known" in vectors:
        vectors = {"encoded": 0, "known": 0, **vectors}
    code = {} if report.code is None else {"reason_code": report.code}
    return {
        **pairs,
        **vectors,
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
