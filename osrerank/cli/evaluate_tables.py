"""Build the tables that ``osrerank evaluate`` prints: measures, values per query, and significance tests."""

from rich.table import Table

from osrerank.cli.tables import table
from osrerank.evaluation.report import Report, count_queries
from osrerank.evaluation.significance import get_run_letter

# Unicode has no superscript q, so the letter q stays as it is
SUPERSCRIPTS = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
MIN_SHOWN_P = 0.0001
COUNT_MEASURES = ("NumQ", "NumRel", "NumRet")
"""Prefixes of the names of measures that are whole numbers."""


def summary_table(report: Report) -> Table:
    """Return a table with a row for each run.

    Letters after a value name the runs that it is significantly better than. If ``report.marks`` is "raw" (without
    Holm's correction), they also name the runs that it is significantly worse than.
    """
    measures = list(report.evaluations[0].overall)
    rows = []
    for index, evaluation in enumerate(report.evaluations):
        name = f"({get_run_letter(index)}) {evaluation.run}" if report.comparisons else evaluation.run
        values = [
            _format_value(measure, evaluation.overall[measure])
            + report.letters.get((evaluation.run, measure), "").translate(SUPERSCRIPTS)
            for measure in measures
        ]
        rows.append([name, str(count_queries(evaluation)), *values])
    return table(["run", "queries", *measures], rows)


def summary_note(report: Report, *, test: str, alpha: float) -> str:
    """Return the line below the summary, which says what is averaged and what the letters mean."""
    queries = "all judged queries" if report.averaging.complete else "the judged queries of each run"
    note = f"averaged over {queries}"
    if not report.comparisons:
        return note
    test_name = "paired t-test" if test == "t" else "randomisation test"
    if report.marks == "raw":
        finding, correction = "better or worse than that run", "raw"
    else:
        finding, correction = "better than that run", "Holm-corrected"
    return f"{note}; letters: significantly {finding} ({test_name}, two-tailed, {correction} p < {alpha:g})"


def per_query_table(report: Report) -> Table:
    """Return a table with a row for each query of each run."""
    measures = list(report.evaluations[0].overall)
    rows = []
    for evaluation in report.evaluations:
        # each id once, in order
        query_ids = dict.fromkeys(query_id for values in evaluation.per_query.values() for query_id in values)
        for query_id in query_ids:
            cells = []
            for measure in measures:
                value = evaluation.per_query[measure].get(query_id)
                cells.append("" if value is None else _format_value(measure, value))
            rows.append([query_id, evaluation.run, *cells])
    return table(["query", "run", *measures], rows)


def comparison_table(report: Report) -> Table:
    """Return a table with a row for each comparison of two runs by a measure."""
    test_columns = ["p (t)", "Holm", "p (rand.)", "Holm"]
    columns = ["measure", "run", "against", "difference", "d_z", "wins/ties/losses", *test_columns]
    rows = [
        [
            comparison.measure,
            comparison.run,
            comparison.baseline,
            f"{comparison.difference:+.4f}",
            f"{comparison.effect_size:+.2f}",
            f"{comparison.wins}/{comparison.ties}/{comparison.losses}",
            _format_p(comparison.p_t),
            _format_p(comparison.p_t_holm),
            _format_p(comparison.p_randomisation),
            _format_p(comparison.p_randomisation_holm),
        ]
        for comparison in report.comparisons
    ]
    return table(columns, rows)


def _format_value(measure: str, value: float) -> str:
    return f"{value:.0f}" if measure.startswith(COUNT_MEASURES) else f"{value:.4f}"


def _format_p(p_value: float) -> str:
    return f"{p_value:.4f}" if p_value >= MIN_SHOWN_P else f"<{MIN_SHOWN_P}"
