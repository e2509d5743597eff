"""Show the report on searches in shadow mode, as rows for a terminal and as an HTML page in one file."""

from collections.abc import Sequence
from html import escape
from typing import Any

from osrerank.decision.page import heading, page, paragraph, rows
from osrerank.decision.use.shadow import ShadowReport, new_hits, spread

TITLE = "Searches in shadow mode"
COLUMNS = ("", "searches", "share")
REASONS = 5
"""How many reasons are shown, the most frequent first."""


def headline(report: ShadowReport) -> str:
    """Return the report in one sentence."""
    counted = "1 search" if report.searches == 1 else f"{report.searches:,} searches"
    if not report.compared:
        return f"{counted} in shadow; reranking was applied to none of them"
    said = f"{counted} in shadow; reranking brings other hits among the first ten to"
    return f"{said} {_share(report.compared - report.new_hits[0], report.compared)} of those that it was applied to"


def outcome_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows that count searches by outcome and by reason, and those that were dropped."""
    names = {"true": "reranked", "partial": "reranked in part", "false": "not reranked"}
    outcomes = [(name, report.applied[outcome]) for outcome, name in names.items() if report.applied[outcome]]
    outcomes += [(f"because: {reason}", count) for reason, count in report.reasons.most_common(REASONS)]
    if (rest := report.reasons.total() - sum(count for _, count in report.reasons.most_common(REASONS))) > 0:
        outcomes.append(("for other reasons", rest))
    every = report.searches + report.dropped
    return [(name, f"{count:,}", _share(count, every)) for name, count in (*outcomes, ("dropped", report.dropped))]


def change_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows that count searches by their number of new hits, and those with another first hit."""
    changes = [(_named(count), report.new_hits[count]) for count in sorted(report.new_hits)]
    changes.append(("another first hit", report.first_changed))
    return [(name, f"{count:,}", _share(count, report.compared)) for name, count in changes]


def number_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows with the median and 95th percentile of moves and times."""
    measured: tuple[tuple[str, Sequence[float]], ...] = (
        ("hits of the first ten that moved", report.moved),
        ("most ranks that one of them moved", report.farthest),
        ("milliseconds, with reranking", report.ms),
        ("milliseconds, OpenSearch's first pass", report.first_pass_ms),
    )
    spreads = [(name, spread(values)) for name, values in measured]
    return [(name, f"{percentiles['p50']:,.0f}", f"{percentiles['p95']:,.0f}") for name, percentiles in spreads]


def example_line(record: dict[str, Any]) -> str:
    """Return a line on what reranking changes in a search."""
    name = record["texts"]["query"] if "texts" in record else record["query"]
    where = f" in {record['index']}" if record.get("index") else ""
    changed = f"{_named(new_hits(record))} of {record['hits']}, {record['moved']} moved, {record['farthest']} ranks"
    return f"{name}{where}: {changed} at the farthest"


def notes(report: ShadowReport) -> list[str]:
    """Return sentences on document vectors and on unreadable lines, which are not in the tables."""
    said = [f"Document vectors: {report.known:,} were stored before, {report.encoded:,} were encoded."]
    if report.unreadable:
        said.append(f"{report.unreadable:,} lines of the files are not records and are left out.")
    return said


def html_page(report: ShadowReport) -> str:
    """Return the report as an HTML page."""
    parts = [heading(TITLE, 1), paragraph(headline(report), "verdict"), *map(paragraph, notes(report))]
    parts += [heading("Outcomes"), rows(COLUMNS, outcome_rows(report))]
    if report.compared:
        parts += [heading("What changes among the first ten"), rows(COLUMNS, change_rows(report))]
    parts += [heading("Moves and times"), rows(("", "p50", "p95"), number_rows(report))]
    if report.most_changed:
        parts.append(heading("Searches that change most"))
        parts += [_example(record) for record in report.most_changed]
        if not any("texts" in record for record in report.most_changed):
            parts.append(paragraph("OSRERANK_SHADOW_TEXTS=true records queries and the ids of hits, too.", "quiet"))
    return page(TITLE, *parts)


def _example(record: dict[str, Any]) -> str:
    if "texts" not in record:
        return paragraph(example_line(record))
    summary = f"<summary>{escape(example_line(record))}</summary>"
    before, after = record["texts"]["before"], record["texts"]["after"]
    sides = _side("First pass", before, after) + _side("Reranked", after, before)
    return f'<details open>{summary}<div class="pair">{sides}</div></details>'


def _side(title: str, ids: Sequence[str], others: Sequence[str]) -> str:
    """Return a list of ids, with those that the other list lacks in bold."""
    items = "".join(f"<li>{_marked(doc_id, is_on_both=doc_id in others)}</li>" for doc_id in ids)
    return f"<div><strong>{escape(title)}</strong><ol>{items}</ol></div>"


def _marked(doc_id: str, *, is_on_both: bool) -> str:
    return escape(doc_id) if is_on_both else f"<strong>{escape(doc_id)}</strong>"


def _named(count: int) -> str:
    return "1 new hit" if count == 1 else f"{count} new hits"


def _share(count: int, every: int) -> str:
    return f"{count / every:.1%}" if every else "0.0%"
