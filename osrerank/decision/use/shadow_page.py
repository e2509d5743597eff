"""Show a `ShadowReport` as rows of tables for a terminal, and as an HTML page."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from osrerank.decision.page import compare_lists, heading, page, paragraph, table
from osrerank.decision.use.shadow import ShadowReport, count_new_hits, percentiles

TITLE = "Searches in shadow mode"
COLUMNS = ("", "searches", "share")
MAX_REASONS = 5
"""The maximum number of reasons shown, by decreasing frequency."""


def headline(report: ShadowReport) -> str:
    """Return the report in one sentence."""
    counted = "1 search" if report.searches == 1 else f"{report.searches:,} searches"
    if not report.compared:
        return f"{counted} in shadow mode; none of them was reranked"
    n_with_new_hits = report.compared - report.new_hits[0]
    percentage = _percentage(n_with_new_hits, report.compared)
    return f"{counted} in shadow mode; reranking brings new hits into the top ten in {percentage} of the reranked ones"


def outcome_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows that count the searches by outcome and by reason, such as ``("reranked", "940", "94.0%")``."""
    names = {"true": "reranked", "partial": "reranked in part", "false": "not reranked"}
    counts = [(name, report.applied[outcome]) for outcome, name in names.items() if report.applied[outcome]]
    reasons = report.reasons.most_common()
    counts += [(f"reason: {reason}", count) for reason, count in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        counts.append(("other reasons", sum(count for _, count in reasons[MAX_REASONS:])))
    counts.append(("dropped", report.dropped))
    total = report.searches + report.dropped
    return [(name, f"{count:,}", _percentage(count, total)) for name, count in counts]


def change_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows that count the searches by number of new hits, such as ``("2 new hits", "15", "15.0%")``.

    The last row counts the searches whose top hit changes.
    """
    changes = [(_new_hits_text(count), report.new_hits[count]) for count in sorted(report.new_hits)]
    changes.append(("a different top hit", report.first_changed))
    return [(name, f"{count:,}", _percentage(count, report.compared)) for name, count in changes]


def number_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return table rows with the median and the 95th percentile of changed ranks and times."""
    measured: tuple[tuple[str, Sequence[float]], ...] = (
        ("hits of the new top ten that moved", report.moved),
        ("largest move of one of them, in ranks", report.farthest),
        ("milliseconds, with reranking", report.ms),
        ("milliseconds, OpenSearch's first pass", report.first_pass_ms),
    )
    rows = [(name, percentiles(values)) for name, values in measured]
    return [(name, f"{values['p50']:,.0f}", f"{values['p95']:,.0f}") for name, values in rows]


def example_line(record: dict[str, Any]) -> str:
    """Return a line about the changes in a search."""
    name = record["texts"]["query"] if "texts" in record else record["query"]  # the query's text, or its digest
    index = f" in {record['index']}" if record.get("index") else ""
    moved = f"{record['moved']} moved, by up to {record['farthest']} ranks"
    return f"{name}{index}: {_new_hits_text(count_new_hits(record))} of {record['hits']}, {moved}"


def notes(report: ShadowReport) -> list[str]:
    """Return sentences about document vectors and unreadable lines, which are not in the tables."""
    sentences = [f"Document vectors: {report.known:,} were stored before, {report.encoded:,} were encoded."]
    if report.unreadable:
        sentences.append(f"{report.unreadable:,} lines of the files are not records and are left out.")
    return sentences


def html_page(report: ShadowReport) -> str:
    """Return the report as an HTML page."""
    blocks = [heading(TITLE, 1), paragraph(headline(report), "verdict"), *map(paragraph, notes(report))]
    blocks += [heading("Outcomes"), table(COLUMNS, outcome_rows(report))]
    if report.compared:
        blocks += [heading("What changes in the top ten"), table(COLUMNS, change_rows(report))]
    blocks += [heading("Moves and times"), table(("", "p50", "p95"), number_rows(report))]
    if report.most_changed:
        blocks.append(heading("Searches that change most"))
        blocks += [_example(record) for record in report.most_changed]
        if not any("texts" in record for record in report.most_changed):
            blocks.append(paragraph("OSRERANK_SHADOW_TEXTS=true records queries and the ids of hits, too.", "quiet"))
    return page(TITLE, *blocks)


def _example(record: dict[str, Any]) -> str:
    if "texts" not in record:
        return paragraph(example_line(record))
    before, after = record["texts"]["before"], record["texts"]["after"]
    return compare_lists(example_line(record), _list_ids(before, after), _list_ids(after, before))


def _list_ids(ids: Sequence[str], other_ids: Sequence[str]) -> Iterator[str]:
    """Yield list items of document ids. Ids that are not in the other list are bold."""
    for doc_id in ids:
        text = escape(doc_id)
        yield f"<li>{text}</li>" if doc_id in other_ids else f"<li><strong>{text}</strong></li>"


def _new_hits_text(count: int) -> str:
    return "1 new hit" if count == 1 else f"{count} new hits"


def _percentage(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "0.0%"
