"""The tables of ``osrerank evaluate``."""

from rich.table import Table

from osrerank.cli.tables import table
from osrerank.evaluation.report import Report, n_queries
from osrerank.evaluation.significance import run_letter

# Unicode has no superscript q.
SUPERSCRIPTS = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
MIN_P = 0.0001  # the smallest that four decimals can show
COUNTS = ("NumQ", "NumRel", "NumRet")


def summary_table(report: Report) -> Table:
    """Return a table with a row per run; letters after a value name the runs that it differs from significantly."""
    measures = list(report.evaluations[0].overall)
    rows = []
    for index, evaluation in enumerate(report.evaluations):
        name = f"({run_letter(index)}) {evaluation.run}" if report.comparisons else evaluation.run
        values = [
            _value(measure, evaluation.overall[measure])
            + report.letters.get((evaluation.run, measure), "").translate(SUPERSCRIPTS)
            for measure in measures
        ]
        rows.append([name, str(n_queries(evaluation)), *values])
    return table(["run", "queries", *measures], rows)


def summary_note(report: Report, *, test: str, alpha: float) -> str:
    """Return a note that says which queries the summary averages, and what its letters mean."""
    note = "averaged over " + (
        "all judged queries" if report.averaging.complete else "the queries of run and judgments"
    )
    if report.comparisons:
        test_name = "paired t-test" if test == "t" else "randomisation test"
        raw = report.marks == "raw"
        means = "significantly better or worse than" if raw else "significantly better than"
        note += (
            f"; letters: {means} that run ({test_name}, two-tailed, {'raw' if raw else 'Holm-corrected'} p < {alpha:g})"
        )
    return note


def per_query_table(report: Report) -> Table:
    """Return a table with a row per query and run."""
    measures = list(report.evaluations[0].overall)
    rows = []
    for evaluation in report.evaluations:
        for query_id in dict.fromkeys(query_id for values in evaluation.per_query.values() for query_id in values):
            by_measure = [evaluation.per_query[measure].get(query_id) for measure in measures]
            values = [
                "" if value is None else _value(name, value) for name, value in zip(measures, by_measure, strict=True)
            ]
            rows.append([query_id, evaluation.run, *values])
    return table(["query", "run", *measures], rows)


def comparison_table(report: Report) -> Table:
    """Return a table with a row per comparison."""
    columns = [
        "measure",
        "run",
        "against",
        "difference",
        "d_z",
        "wins/ties/losses",
        "p (t)",
        "Holm",
        "p (rand.)",
        "Holm",
    ]
    rows = [
        [
            comparison.measure,
            comparison.run,
            comparison.baseline,
            f"{comparison.difference:+.4f}",
            f"{comparison.effect_size:+.2f}",
            f"{comparison.wins}/{comparison.ties}/{comparison.losses}",
            *(
                _p_value(p_value)
                for p_value in (
                    comparison.p_t,
                    comparison.p_t_holm,
                    comparison.p_randomisation,
                    comparison.p_randomisation_holm,
                )
            ),
        ]
        for comparison in report.comparisons
    ]
    return table(columns, rows)


def _value(measure: str, value: float) -> str:
    return f"{value:.0f}" if measure.startswith(COUNTS) else f"{value:.4f}"


def _p_value(p_value: float) -> str:
    return f"{p_value:.4f}" if p_value >= MIN_P else f"<{MIN_P}"
