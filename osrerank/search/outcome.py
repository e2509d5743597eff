"""Make the report of a search: its page of hits, whether they were reranked, and if not, why."""

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
    """Return the report of a search, with its page of hits.

    Args:
        response: the search engine's response.
        outcome: the ranking after all stages, or the reason why the hits were not reranked.
        plan: the plan of the search.
        interleaved: the page of two interleaved rankings. None if the search is not interleaved.
        rerank_ms: the wall time of reranking, in milliseconds.

    Raises:
        ConfigError: a field that the options name is missing or has no text, and ``on_failure`` is ``"raise"``.
    """
    if isinstance(outcome, Reason):
        report = unranked_report(response, outcome, plan)
    elif interleaved is not None and interleaved.failure is None:
        report = _interleaved_report(interleaved, outcome)
    elif find_applied(outcome.reports):
        report = _ranked_report(response, outcome, plan)
    else:
        report = unranked_report(response, _failure_reason(outcome), plan)
        report = replace(report, stages=outcome.reports, warnings=outcome.warnings)
    was_reranking_planned = isinstance(outcome, Ranking) or plan.page is not None
    if was_reranking_planned:
        report = replace(report, explain=plan.options.explain, rerank_ms=rerank_ms)
    if interleaved is not None:
        stages = [stage_as_json(stage, explain=plan.options.explain) for stage in interleaved.stages]
        entry: dict[str, Any] = {"applied": interleaved.failure is None, "reason": interleaved.failure}
        if interleaved.failure is None:
            entry |= {"teams": interleaved.teams, "stages": stages, "name": interleaved.name}
        report = report.with_entries(interleave=entry)
    report = _add_fields(report, outcome, plan, interleaved)
    traffic = plan.options.traffic
    if traffic is None:
        return report
    return report.with_entries(traffic={"share": traffic.share, "chosen": traffic.is_chosen})


def _failure_reason(ranking: Ranking) -> Reason:
    """Return the reason why no stage reranked the hits, from the reports of the stages."""
    if not ranking.reports:  # the pipeline has no stages
        return NOT_ASKED
    code = find_reason_code(ranking.reports) or ReasonCode.SCORING
    return Reason(code, describe_failures(ranking.reports) or NOT_ASKED.message)


def _interleaved_report(interleaved: InterleavedList, ranking: Ranking) -> Report:
    """Return the report of a search whose page has hits of two rankings. ``ranking`` is the first one."""
    return Report(
        applied=True,
        reason=None,
        code=None,
        hits=interleaved.hits,
        stages=ranking.reports,
        warnings=interleaved.warnings,
        max_score=interleaved.max_score,
    )


def _ranked_report(response: Mapping[str, Any], ranking: Ranking, plan: Plan) -> Report:
    """Return the report of a search whose hits were reranked, fully or in part."""
    assert plan.page is not None
    page = make_page(response, ranking, plan.page)
    return Report(
        applied=find_applied(ranking.reports),
        reason=describe_failures(ranking.reports) or None,
        code=find_reason_code(ranking.reports),
        hits=page.hits,
        stages=ranking.reports,
        warnings=ranking.warnings,
        max_score=page.max_score,
        entries=page.removed,
    )


def unranked_report(response: Mapping[str, Any], reason: Reason, plan: Plan) -> Report:
    """Return the report of a search whose hits keep the first pass's order."""
    hits = make_unranked_page(response, plan.page, plan.offset)
    return Report(applied=False, reason=str(reason), code=reason.code, hits=hits)


def _add_fields(report: Report, outcome: Ranking | Reason, plan: Plan, interleaved: InterleavedList | None) -> Report:
    """Return the report with the fields whose text the model got, and with warnings about fields in the options.

    A warning says that a field is missing, or that no hit has text in it.

    Raises:
        ConfigError: a field is missing or has no text, and ``on_failure`` is ``"raise"``.
    """
    fields_with_text: set[str] | None = None  # unknown
    if isinstance(outcome, Ranking):
        report = report.with_entries(fields=list(plan.model_fields))
        if plan.fields.left_out:
            report = report.with_entries(fields_left_out=list(plan.fields.left_out))
        fields_by_index = plan.fields.model_fields_by_index(plan.options.fields)
        if fields_by_index:
            report = report.with_entries(fields_by_index={name: list(names) for name, names in fields_by_index.items()})
        if plan.fields.option_names.names_to_check:
            candidates = [*outcome.candidates, *(interleaved.candidates if interleaved is not None else ())]
            fields_with_text = {
                section.field for candidate in candidates for section in candidate.sections if section.text.strip()
            }
    elif outcome.code is ReasonCode.NO_TEXT:
        report = report.with_entries(fields=list(plan.model_fields))
        fields_with_text = set()
    name_warnings = plan.fields.check_names(fields_with_text)
    was_requested = plan.call.exclusion is None and outcome is not NOT_ASKED
    if name_warnings and plan.options.on_failure == "raise" and was_requested:
        fix = "correct the name, or leave it out"
        raise ConfigError(f"{name_warnings[0]}: {fix}", setting="rerank.fields", source="argument")
    return replace(report, warnings=(*report.warnings, *plan.warnings, *plan.fields.warnings, *name_warnings))
