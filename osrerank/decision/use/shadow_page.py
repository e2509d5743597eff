"""Show the report on searches in shadow mode, as rows for a terminal and as an HTML page in one file."""

from collections.abc import Sequence
from html import escape
from typing import Any

from osrerank.decision.page import heading, page, paragraph, rows
from osrerank.decision.use.shadow import ShadowReport, new_hits, spread

TITLE = "Searches in shadow mode"
COLUMNS = ("", "searches", "share")
REASONS = 5
"""Maximum number of reasons shown; the page lists them by decreasing frequency."""


def headline(report: ShadowReport) -> str:
    """Return the report in one sentence."""
    counted = "1 search" if report.searches == 1 else f"{report.searches:,} searches"
    if not report.compared:
        return f"{counted} in shadow; reranking was applied to none of them"
    summary = f"{counted} in shadow; reranking brings other hits among the first ten to"
    return f"{summary} {_share(report.compared - report.new_hits[0], report.compared)} of those that it was applied to"


def outcome_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows that count searches by outcome and by reason, and the dropped searches."""
    names = {"true": "reranked", "partial": "reranked in part", "false": "not reranked"}
    outcomes = [(name, report.applied[outcome]) for outcome, name in names.items() if report.applied[outcome]]
    outcomes += [(f"because: {reason}", count) for reason, count in report.reasons.most_common(REASONS)]
    if (other_reasons := report.reasons.total() - sum(count for _, count in report.reasons.most_common(REASONS))) > 0:
        outcomes.append(("for other reasons", other_reasons))
    total = report.searches + report.dropped
    return [(name, f"{count:,}", _share(count, total)) for name, count in (*outcomes, ("dropped", report.dropped))]


def change_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows that count searches by their number of new hits, and the searches with another first hit."""
    changes = [(_new_hits_text(count), report.new_hits[count]) for count in sorted(report.new_hits)]
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
    """Return a line about the changes that reranking makes in a search."""
    name = record["texts"]["query"] if "texts" in record else record["query"]
    index = f" in {record['index']}" if record.get("index") else ""
    moved = f"{record['moved']} moved, {record['farthest']} ranks at the farthest"
    return f"{name}{index}: {_new_hits_text(new_hits(record))} of {record['hits']}, {moved}"


def notes(report: ShadowReport) -> list[str]:
    """Return sentences about document vectors and unreadable lines, which are not in the tables."""
    sentences = [f"Document vectors: {report.known:,} were stored before, {report.encoded:,} were encoded."]
    if report.unreadable:
        sentences.append(f"{report.unreadable:,} lines of the files are not records and are left out.")
    return sentences


def html_page(report: ShadowReport) -> str:
    """Return the report as an HTML page."""
    blocks = [heading(TITLE, 1), paragraph(headline(report), "verdict"), *map(paragraph, notes(report))]
    blocks += [heading("Outcomes"), rows(COLUMNS, outcome_rows(report))]
    if report.compared:
        blocks += [heading("What changes among the first ten"), rows(COLUMNS, change_rows(report))]
    blocks += [heading("Moves and times"), rows(("", "p50", "p95"), number_rows(report))]
    if report.most_changed:
        blocks.append(heading("Searches that change most"))
        blocks += [_example(record) for record in report.most_changed]
        if not any("texts" in record for record in report.most_changed):
            blocks.append(paragraph("OSRERANK_SHADOW_TEXTS=true records queries and the ids of hits, too.", "quiet"))
    return page(TITLE, *blocks)


def _example(record: dict[str, Any]) -> str:
    if "texts" not in record:
        return paragraph(example_line(record))
    summary = f"<summary>{escape(example_line(record))}</summary>"
    before, after = record["texts"]["before"], record["texts"]["after"]
    sides = _side("First pass", before, after) + _side("Reranked", after, before)
    return f'<details open>{summary}<div class="pair">{sides}</div></details>'


def _side(title: str, ids: Sequence[str], other_ids: Sequence[str]) -> str:
    """Return an HTML list of ids; ids that the other list lacks are bold."""
    rows_html = "".join(f"<li>{_marked(doc_id, is_on_both=doc_id in other_ids)}</li>" for doc_id in ids)
    return f"<div><strong>{escape(title)}</strong><ol>{rows_html}</ol></div>"


def _marked(doc_id: str, *, is_on_both: bool) -> str:
    return escape(doc_id) if is_on_both else f"<strong>{escape(doc_id)}</strong>"


def _new_hits_text(count: int) -> str:
    return "1 new hit" if count == 1 else f"{count} new hits"


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "0.0%"
