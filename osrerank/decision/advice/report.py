"""Report an `IndexAdvice`: as lines for a terminal, as JSON values, and as an HTML page."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from html import escape
from typing import Any

from osrerank.decision.advice.advise import TOP_HITS, IndexAdvice
from osrerank.decision.advice.choose import Choice
from osrerank.decision.advice.query_hits import QueryHits, SearchSetting
from osrerank.decision.advice.verdict import Outcome, Verdict
from osrerank.decision.page import compare_lists, heading, page, paragraph, table
from osrerank.evaluation.significance import format_p_value
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES
from osrerank.types import Qrels

MAX_EXAMPLES = 3
"""The maximum number of queries shown that gain from reranking, and of queries shown that lose."""
MAX_JUDGED_DIFFERENCE = 0.1
"""The maximum by which reranking can lower the fraction of judged hits without a warning in the report."""
SHOWN_HITS = 5
"""The number of hits of a query on the page."""
SNIPPET_CHARACTERS = 140
HEADLINES: dict[Outcome, str] = {
    "helps": "reranking helps",
    "hurts": "reranking hurts",
    "undecided": "undecided whether reranking helps",
}
VERDICT_TEXTS: dict[Outcome, str] = {
    "helps": "Yes: rerank=True as it is now is better than the first pass.",
    "hurts": "No: rerank=True as it is now is worse than the first pass.",
    "undecided": "Undecided: these queries do not show whether rerank=True as it is now is better than the first pass.",
}
CHOICE_TEXTS: dict[Outcome, str] = {
    "helps": "better than the current setting",
    "hurts": "worse on unseen queries than the current setting, which stays",
    "undecided": "not shown to be better than the current setting, which stays",
}
PIPELINE_NAMES = {NO_STAGES: "first pass", AUTO_PIPELINE: "mono"}
"""Clearer names for the pipelines ``none`` and ``auto``."""
CSS_CLASSES: dict[Outcome, str] = {"helps": "verdict good", "hurts": "verdict bad", "undecided": "verdict"}


def headline(advice: IndexAdvice) -> str:
    """Return the verdict in one line."""
    return f"{advice.index}: {HEADLINES[advice.verdict.outcome]}"


def lines(advice: IndexAdvice) -> list[str]:
    """Return the verdict with its numbers, for a terminal."""
    return [headline(advice), *(f"  {line}" for line in _number_lines(advice))]


def _number_lines(advice: IndexAdvice) -> Iterator[str]:
    """Yield the measured differences, the warnings, the alternatives, and the best setting."""
    yield f"as it is now ({advice.current}), {len(advice.current_hits)} queries, {_time_text(advice, advice.current)}:"
    yield _difference_text(advice.measure, advice.verdict)
    yield from _queries_needed_lines(advice.verdict)
    yield from _warnings(advice)
    judged_before, judged_after = advice.judged_fractions
    if judged_before - judged_after > MAX_JUDGED_DIFFERENCE:
        yield (
            f"{judged_before:.0%} of the first pass's top ten hits are judged, and {judged_after:.0%} of the reranked "
            "ones. A hit without a judgment counts as not relevant, so reranking might be better than it looks; judge "
            "more hits"
        )
    yield from _alternative_lines(advice)
    compares_pipelines = any(query_hits.vector_candidates for query_hits in advice.current_hits)
    if compares_pipelines:
        for setting in advice.best_by_pipeline():
            mean = float(advice.values[setting].mean())
            name = PIPELINE_NAMES.get(setting.pipeline, setting.pipeline)
            yield f"{name}: {advice.measure} {mean:.4f}, {_time_text(advice, setting)} ({setting})"
    if advice.best == advice.current:
        yield "best: the current setting"
        return
    choice = advice.choice
    yield f"best: {advice.best}"
    yield f"expected on unseen queries (cross-validation): {choice.promised:.4f} [{choice.low:.4f}, {choice.high:.4f}]"
    yield f"{CHOICE_TEXTS[choice.verdict.outcome]}: {_difference_text(advice.measure, choice.verdict)}"
    yield from _queries_needed_lines(choice.verdict)


def _warnings(advice: IndexAdvice) -> Iterator[str]:
    """Yield warnings about judgments and queries that make the measure too low."""
    n_missing, n_relevant = advice.missing_counts
    if n_missing:
        yield (
            f"{n_missing} of {n_relevant} documents judged relevant are not in the index {advice.index}, so no search "
            "can return them; each counts as missed"
        )
    if advice.n_queries_with_own_hit:
        yield (
            f"{advice.n_queries_with_own_hit} of {len(advice.current_hits)} queries have a hit with the query's own "
            "id; if it is the query text itself, exclude it with --exclude-query-ids, as BEIR does"
        )


def _alternative_lines(advice: IndexAdvice) -> Iterator[str]:
    """Yield a line for each alternative, such as "  fields title: 0.512 [0.480, 0.544], +0.010 against now, ..."."""
    if not advice.best_by_hits:
        return
    current_mean = float(advice.values[advice.current].mean())
    compared = "fields, models and queries compared, each with its best depth and blend, on unseen queries"
    yield f"{compared} (now {current_mean:.4f}):"
    for choice in advice.best_by_hits:
        verdict = choice.verdict
        difference = f"{verdict.difference:+.4f} against now, {format_p_value(verdict.p_value)}"
        expected = f"{choice.promised:.4f} [{choice.low:.4f}, {choice.high:.4f}]"
        yield f"  {_alternative_name(advice, choice)}: {expected}, {difference}{_first_pass_text(advice, choice)}"


def _first_pass_text(advice: IndexAdvice, choice: Choice) -> str:
    """Return the mean without reranking for a choice that uses the query template, such as "; not reranked 0.4120"."""
    if not choice.setting.query:
        return ""
    for setting, values in advice.values.items():
        if setting.is_first_pass and setting.hits_key == choice.setting.hits_key:
            return f"; not reranked {float(values.mean()):.4f}"
    return ""


def _alternative_name(advice: IndexAdvice, choice: Choice) -> str:
    """Name an alternative by its query template, fields or model, whichever differs from the current setting."""
    setting = choice.setting
    if setting.query:
        return f"your query {setting.query}"
    if setting.fields:
        return f"fields {', '.join(setting.fields)}"
    if setting.model != advice.current.model:
        return f"model {setting.model}"
    return f"as now: fields {', '.join(advice.options.fields or ('all',))}, model {setting.model}"


def _time_text(advice: IndexAdvice, setting: SearchSetting) -> str:
    took_ms = advice.took_ms(setting)
    return "time not measured" if took_ms is None else f"{took_ms:.1f} ms"


def _difference_text(measure: str, verdict: Verdict) -> str:
    """Return the difference with its confidence interval, such as "nDCG@10 0.50 -> 0.55: +0.05 [+0.01, +0.09], ..."."""
    return (
        f"{measure} {verdict.before:.4f} -> {verdict.after:.4f}: {verdict.difference:+.4f} [{verdict.low:+.4f}, "
        f"{verdict.high:+.4f}], {format_p_value(verdict.p_value)}; {verdict.better} better, {verdict.equal} equal, "
        f"{verdict.worse} worse"
    )


def _queries_needed_lines(verdict: Verdict) -> Iterator[str]:
    if verdict.outcome != "undecided":
        return
    if verdict.more_queries is None:
        needed = f"no number of queries would decide a difference of {verdict.difference:+.4f}"
    else:
        needed = f"about {verdict.more_queries:,} more judged queries would decide it, if the difference is as measured"
    yield f"{needed}; {verdict.queries} queries find a difference of {verdict.detectable:.4f} in four of five cases"


def find_extremes(advice: IndexAdvice) -> tuple[list[int], list[int]]:
    """Return which queries gain most with the best setting, and which lose most: their rows in ``current_hits``."""
    gains = advice.values[advice.best] - advice.first_pass_values
    rows_by_gain = [int(row) for row in gains.argsort(kind="stable")]
    gaining = [row for row in rows_by_gain[::-1][:MAX_EXAMPLES] if gains[row] > 0]
    losing = [row for row in rows_by_gain[:MAX_EXAMPLES] if gains[row] < 0]
    return gaining, losing


def extreme_lines(advice: IndexAdvice) -> list[str]:
    """Return a line for each query that gains or loses most, such as ``gains most: 0.20 -> 0.90 blood pressure``."""
    after = advice.values[advice.best]
    extremes = []
    for name, rows in zip(("gains most", "loses most"), find_extremes(advice), strict=True):
        for row in rows:
            query_text = advice.current_hits[row].query.text
            extremes.append(f"  {name}: {advice.first_pass_values[row]:.2f} -> {after[row]:.2f} {query_text}")
    return extremes


def as_json(advice: IndexAdvice) -> dict[str, Any]:
    """Return the advice as JSON values."""
    gaining, losing = find_extremes(advice)
    return {
        "index": advice.index,
        "measure": advice.measure,
        "decision": advice.verdict.outcome,
        "queries": len(advice.current_hits),
        "current": _setting_as_json(advice.current),
        "verdict": asdict(advice.verdict),
        "choice": asdict(advice.choice),
        "recommended": dict(advice.recommended),
        "settings": [
            {**_setting_as_json(setting), "mean": float(values.mean()), "took_ms": advice.took_ms(setting)}
            for setting, values in advice.values.items()
        ],
        "compared": [{**_setting_as_json(choice.setting), **asdict(choice)} for choice in advice.best_by_hits],
        "lacking": {"documents": advice.missing_counts[0], "relevant": advice.missing_counts[1]},
        "own_hits": advice.n_queries_with_own_hit,
        "judged": {"first_pass": advice.judged_fractions[0], "reranked": advice.judged_fractions[1]},
        "gains": [_example_as_json(advice, row) for row in gaining],
        "losses": [_example_as_json(advice, row) for row in losing],
    }


def _setting_as_json(setting: SearchSetting) -> dict[str, Any]:
    query = {"query": setting.query} if setting.query else {}
    return {"model": setting.model, **setting.options(), **query}


def _example_as_json(advice: IndexAdvice, row: int) -> dict[str, Any]:
    query_hits = advice.current_hits[row]
    return {
        "query_id": query_hits.query.query_id,
        "query": query_hits.query.text,
        "before": float(advice.first_pass_values[row]),
        "after": float(advice.values[advice.best][row]),
        "first_pass": query_hits.order(None)[:TOP_HITS],
        "reranked": advice.find_hits(advice.best)[row].order(advice.best)[:TOP_HITS],
    }


def html_page(advice: IndexAdvice, qrels: Qrels, settings: str) -> str:
    """Return the report as an HTML page.

    The hits that are judged relevant are marked. ``settings`` is the content of the recommended settings file.
    """
    title, *number_lines = lines(advice)
    better_setting = "No other setting is shown to be better."
    if advice.choice.verdict.outcome == "helps":
        better_setting = f"Better: {advice.best}."
    verdict = f"{VERDICT_TEXTS[advice.verdict.outcome]} {better_setting}"
    blocks = [heading(title, 1), paragraph(verdict, CSS_CLASSES[advice.verdict.outcome])]
    blocks += [paragraph(line.strip()) for line in number_lines]
    blocks += [heading("Settings"), _settings_table(advice)]
    for name, rows in zip(("gain most", "lose most"), find_extremes(advice), strict=True):
        blocks += [heading(f"Queries that {name}")]
        blocks += [_compare_hits(advice, row, qrels) for row in rows] or [paragraph("None.")]
    return page(headline(advice), *blocks, heading("Settings file"), f"<pre>{escape(settings)}</pre>")


def _settings_table(advice: IndexAdvice) -> str:
    """Return a table of the best setting, the current one, and the best blend for each model, pipeline and depth."""
    means = {setting: float(values.mean()) for setting, values in advice.values.items()}
    best: dict[tuple[object, ...], SearchSetting] = {}
    for setting, mean in means.items():
        group = setting.hits_key, setting.pipeline, setting.duo_depth, setting.depth, setting.mono_depth
        if group not in best or mean > means[best[group]]:
            best[group] = setting
    labels = {advice.current: " (now)", advice.best: " (best)"}
    first_pass = float(advice.first_pass_values.mean())
    rows = [
        [
            f"{setting}{labels.get(setting, '')}",
            f"{means[setting]:.4f}",
            f"{means[setting] - first_pass:+.4f}",
            _time_text(advice, setting),
        ]
        for setting in dict.fromkeys([advice.best, advice.current, *best.values()])
    ]
    columns = ("setting", f"{advice.measure} on these queries", "over first pass", "stages, with stored vectors")
    note = "The best of many settings looks better here than on unseen queries, for which the estimate above is made."
    return table(columns, rows) + paragraph(note, "quiet")


def _compare_hits(advice: IndexAdvice, row: int, qrels: Qrels) -> str:
    query_hits, after = advice.current_hits[row], advice.values[advice.best][row]
    grades = qrels.judgments.get(query_hits.query.query_id, {})
    reranked = advice.find_hits(advice.best)[row]
    summary = f"{query_hits.query.text} ({advice.first_pass_values[row]:.2f} → {after:.2f})"
    return compare_lists(summary, _list_hits(query_hits, None, grades), _list_hits(reranked, advice.best, grades))


def _list_hits(query_hits: QueryHits, setting: SearchSetting | None, grades: Mapping[str, int]) -> Iterator[str]:
    """Yield list items of the top hits with a setting. For None, yield those of the first pass."""
    for doc_id in query_hits.order(setting)[:SHOWN_HITS]:
        text = escape(f"{doc_id}: {query_hits.texts[doc_id][:SNIPPET_CHARACTERS]}")
        yield f'<li class="good">✓ {text}</li>' if grades.get(doc_id, 0) > 0 else f"<li>{text}</li>"
