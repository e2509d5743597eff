"""Make the report of a search: choose the hits of its page, and say whether and why not they were reranked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osrerank.errors import ConfigError
from osrerank.pipeline import describe_failures, find_applied, find_reason_code
from osrerank.response import make_page, make_unranked_page
from osrerank.search.interleave import InterleavedList
from osrerank.search.plan import NOT_ASKED, Plan
from osrerank.search.report import Report, stage_as_json
from osrerank.types import Ranking
from osrerank.types.reasons import Reason, ReasonCode


def make_report(
    response: Mapping[str, Any],
    outcome: Ranking | Reason,
    plan: Plan,
    interleaved: InterleavedList | None = None,
    *,
    rerank_ms: float = 0.0,
) -> Report:
    """Return the report of a search, with the hits of the page that it returns.

    Args:
        response: the search engine's response.
        outcome: the reranked hits, or the reason why they were not reranked.
        plan: the plan of the search.
        interleaved: the interleaved list. None if the search is not interleaved.
        rerank_ms: the wall time of reranking, in milliseconds.

    Raises:
        ConfigError: a field that the options name is missing or has no text, and ``on_failure`` is ``"raise"``.
    """
    if isinstance(outcome, Reason):
        report = unranked_report(response, outcome, plan)
    elif interleaved is not None and interleaved.obstacle is None:
        report = Report(
            applied=True,
            reason=None,
            code=None,
            hits=interleaved.hits,
            stages=outcome.reports,
            warnings=interleaved.warnings,
            max_score=interleaved.max_score,
        )
    elif find_applied(outcome.reports):
        report = _ranked_report(response, outcome, plan)
    else:
        report = unranked_report(response, _failure_reason(outcome), plan)
        report = replace(report, stages=outcome.reports, warnings=outcome.warnings)
    if isinstance(outcome, Ranking) or plan.page is not None:
        report = replace(report, explain=plan.options.explain, rerank_ms=rerank_ms)
    if interleaved is not None:
        stages = [stage_as_json(stage, explain=plan.options.explain) for stage in interleaved.stages]
        entry: dict[str, Any] = {"applied": not interleaved.obstacle, "reason": interleaved.obstacle}
        if interleaved.obstacle is None:
            entry |= {"teams": interleaved.teams, "stages": stages, "name": interleaved.name}
        report = report.with_entries(interleave=entry)
    report = _add_fields(report, outcome, plan, interleaved)
    traffic = plan.options.traffic
    if traffic is None:
        return report
    return report.with_entries(traffic={"share": traffic.share, "chosen": traffic.is_chosen})


def _failure_reason(ranking: Ranking) -> Reason:
    """Return the reason why no stage reranked the hits."""
    code = find_reason_code(ranking.reports) or (ReasonCode.SCORING if ranking.reports else NOT_ASKED.code)
    return Reason(code, describe_failures(ranking.reports) or NOT_ASKED.message)


def _ranked_report(response: Mapping[str, Any], ranking: Ranking, plan: Plan) -> Report:
    assert plan.page is not None
    page = make_page(response, ranking, plan.page)
    return Report(
        find_applied(ranking.reports),
        describe_failures(ranking.reports) or None,
        find_reason_code(ranking.reports),
        page.hits,
        ranking.reports,
        ranking.warnings,
        max_score=page.max_score,
        entries=page.removed,
    )


def unranked_report(response: Mapping[str, Any], reason: Reason, plan: Plan) -> Report:
    """Return the report of a search whose hits keep the first pass's order, with the reason why."""
    hits = make_unranked_page(response, plan.page, plan.offset)
    return Report(applied=False, reason=str(reason), code=reason.code, hits=hits)


def _add_fields(report: Report, outcome: Ranking | Reason, plan: Plan, interleaved: InterleavedList | None) -> Report:
    """Return the report with the fields whose text the model got, and with warnings about missing or empty fields.

    Raises:
        ConfigError: a field is missing or has no text, and ``on_failure`` is ``"raise"``.
    """
    fields_with_text: set[str] | None = None
    if isinstance(outcome, Ranking):
        left_out = {"fields_left_out": list(plan.fields.left_out)} if plan.fields.left_out else {}
        report = report.with_entries(fields=list(plan.model_fields), **left_out)
        fields_by_index = plan.fields.model_fields_by_index(plan.options.fields)
        if fields_by_index:
            report = report.with_entries(fields_by_index={name: list(names) for name, names in fields_by_index.items()})
        if plan.fields.names.is_searched or plan.fields.warnings:
            candidates = [*outcome.candidates, *(interleaved.candidates if interleaved is not None else ())]
            fields_with_text = {
                section.field for candidate in candidates for section in candidate.sections if section.text.strip()
            }
    elif outcome.code is ReasonCode.NO_TEXT:
        report, fields_with_text = report.with_entries(fields=list(plan.model_fields)), set()
    warnings = plan.fields.check_names(fields_with_text)
    if warnings and plan.options.on_failure == "raise" and plan.call.exclusion is None and outcome is not NOT_ASKED:
        fix = "correct the name, or leave it out"
        raise ConfigError(f"{warnings[0]}: {fix}", setting="rerank.fields", source="argument")
    return replace(report, warnings=(*report.warnings, *plan.warnings, *plan.fields.warnings, *warnings))
