"""``osrerank evaluate``: measure runs, and test whether they differ."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.sources import SOURCE

if TYPE_CHECKING:
    from osrerank.evaluation.measures import Evaluation
    from osrerank.evaluation.report import Report
    from osrerank.formats.trec import Duplicates
    from osrerank.types import Run

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("qrels", type=SOURCE)
@click.argument("runs", type=FILE, nargs=-1, required=True)
@click.option(
    "-m", "--measure", "measures", multiple=True, metavar="NAME", help="nDCG@10, AP(rel=2), map, ...; repeat for more."
)
@click.option("--msmarco", is_flag=True, help="MS MARCO's official MRR@10, divided by the number of reference queries.")
@click.option("--per-query", is_flag=True, help="Also show every query's values.")
@click.option(
    "--complete",
    is_flag=True,
    help="Average over all judged queries (trec_eval -c), counting 0 for queries that a run lacks.",
)
@click.option(
    "-l", "--relevance-level", default=1, show_default=True, help="Lowest grade that counts as relevant (trec_eval -l)."
)
@click.option("--depth", type=click.IntRange(min=1), help="Measure only the first N documents (trec_eval -M).")
@click.option(
    "--double-precision", is_flag=True, help="Compare scores in 64 bits, not in 32 as trec_eval up to 9.0.8 does."
)
@click.option(
    "--duplicates",
    type=click.Choice(["refuse", "first"]),
    default="refuse",
    show_default=True,
    help="What to do if a run has a document twice: refuse the run, or count the first.",
)
@click.option("--compare", is_flag=True, help="Test the other runs against the first.")
@click.option("--all-pairs", is_flag=True, help="Test every pair of runs.")
@click.option(
    "--test",
    type=click.Choice(["t", "randomisation"]),
    default="t",
    show_default=True,
    help="Significance test behind the letters.",
)
@click.option(
    "--alpha",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Significant below this p-value.",
)
@click.option(
    "--marks",
    type=click.Choice(["holm", "raw"]),
    default="holm",
    show_default=True,
    help="Letters by Holm-corrected p-values beside the better run, or by raw p-values beside both.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the randomisation test.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for programs.")
@click.pass_obj
def evaluate(obj: dict[str, Any], /, **options: Any) -> None:
    """Measure RUNS against QRELS as trec_eval does, and test their differences.

    \b
    osrerank evaluate qrels.txt bm25.run reranked.run -m nDCG@10 -m AP --compare

    A run has six columns (TREC) or three (MS MARCO: query, document, rank); files may be gzipped. Without -m:
    nDCG@10, RR@10, AP and R@100.
    """
    _check(options)
    report = _report(options)
    if options["as_json"] or (obj or {}).get("as_json"):
        click.echo(json.dumps(report.as_json(per_query=options["per_query"]), indent=2))
    elif options["as_csv"]:
        click.echo(report.as_csv(per_query=options["per_query"]), nl=False)
    else:
        _show(report, options)


def _check(options: dict[str, Any]) -> None:
    if options["marks"] == "raw" and not (options["compare"] or options["all_pairs"]):
        raise click.UsageError("--marks raw goes with --compare or --all-pairs")


def _report(options: dict[str, Any]) -> "Report":
    """Read and measure the runs, and compare them if asked for."""
    from osrerank.evaluation import measures, report, significance
    from osrerank.formats import trec

    averaging = measures.Averaging(
        complete=options["complete"],
        relevance_level=options["relevance_level"],
        depth=options["depth"],
        single_precision=not options["double_precision"],
    )
    official = (measures.MSMARCO,) if options["msmarco"] else ()
    names = (*options["measures"], *official) or measures.DEFAULT_MEASURES
    qrels = trec.read_qrels(options["qrels"])
    runs = _read_runs(options["runs"], options["duplicates"])
    evaluations = [measures.evaluate(qrels, run, names, averaging) for run in runs]
    for run, evaluation in zip(runs, evaluations, strict=True):
        judged = measures.select_judgments(qrels, run.rankings, run.name, complete=averaging.complete)
        _warn_of_undefined_values(evaluation, len(judged))
    _warn_of_different_queries(evaluations)
    _warn_of_self_hits(runs)
    _warn_of_partial_queries(options["runs"])
    if not (options["compare"] or options["all_pairs"]):
        return report.Report(evaluations, averaging, (), {})
    compared = significance.compare_runs(evaluations, all_pairs=options["all_pairs"], seed=options["seed"])
    marks = significance.superscripts(
        compared, [run.name for run in runs], test=options["test"], alpha=options["alpha"], marks=options["marks"]
    )
    return report.Report(evaluations, averaging, compared, marks, options["marks"])


def _warn_of_undefined_values(evaluation: "Evaluation", queries: int) -> None:
    """Warn of measures that have no value for some queries, such as Accuracy without a relevant hit."""
    for measure, values in evaluation.per_query.items():
        if len(values) < queries:
            lacking = f"{queries - len(values)} of {queries} queries of {evaluation.run}"
            click.echo(f"Warning: {measure} has no value for {lacking}, which are left out of its mean", err=True)


def _warn_of_self_hits(runs: "Sequence[Run]") -> None:
    """Warn if queries find themselves: in some collections, queries are documents of the corpus."""
    from osrerank.evaluation.self_hits import count_self_hits

    for run in runs:
        rankings = {
            query_id: [document.doc_id for document in documents] for query_id, documents in run.rankings.items()
        }
        if count := count_self_hits(rankings):
            finding = (
                f"in {run.name}, {count} of {len(rankings)} queries have a document with the query's own id on top"
            )
            click.echo(f"Warning: {finding}; BEIR leaves it out: osrerank run --exclude-query-ids", err=True)


def _warn_of_different_queries(evaluations: "Sequence[Evaluation]") -> None:
    """Warn if runs are averaged over different queries, so that their means cannot be compared."""
    answered = {evaluation.run: set().union(*evaluation.per_query.values()) for evaluation in evaluations}
    if len({frozenset(queries) for queries in answered.values()}) > 1:
        counts = ", ".join(f"{run} {len(queries)}" for run, queries in answered.items())
        click.echo(
            f"Warning: the runs cover different judged queries ({counts}); set --complete to count all", err=True
        )


def _warn_of_partial_queries(paths: Sequence[Path]) -> None:
    """Warn of runs with partly reranked queries, according to their side files."""
    from osrerank.errors import EvaluationError
    from osrerank.evaluation.side_file import read_records

    for path in paths:
        side_file, partial = path.with_name(f"{path.name}.jsonl"), 0
        with suppress(EvaluationError):  # a file of another kind
            partial = sum(record.is_partial for record in read_records(side_file)) if side_file.is_file() else 0
        if partial:
            click.echo(f"Warning: {path} has {partial} partly reranked queries; see {side_file}", err=True)


def _read_runs(paths: Sequence[Path], duplicates: "Duplicates") -> list["Run"]:
    """Read the runs, and name them after their files, or by their paths if several files have one name."""
    from osrerank.formats.trec import read_run

    stems = Counter(path.stem for path in paths)
    return [
        replace(read_run(path, duplicates=duplicates), name=path.stem if stems[path.stem] == 1 else str(path))
        for path in paths
    ]


def _show(report: "Report", options: dict[str, Any]) -> None:
    """Print the tables."""
    from osrerank.cli import evaluate_tables as tables
    from osrerank.cli.tables import console

    screen = console()
    if options["per_query"]:
        screen.print(tables.per_query_table(report))
    screen.print(tables.summary_table(report))
    click.echo(tables.summary_note(report, test=options["test"], alpha=options["alpha"]))
    if report.comparisons:
        screen.print(tables.comparison_table(report))
        click.echo("d_z: mean difference over its standard deviation")
