"""``osrerank evaluate``: measure runs against judgments, and test whether their differences are significant."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.path_types import FILE, SOURCE

if TYPE_CHECKING:
    from osrerank.evaluation.measures import Evaluation
    from osrerank.evaluation.report import Report
    from osrerank.formats.trec import Duplicates
    from osrerank.types import Run


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
    help="Average over all judged queries; queries missing from a run count 0 (trec_eval -c).",
)
@click.option("-l", "--relevance-level", default=1, show_default=True, help="Lowest relevant grade (trec_eval -l).")
@click.option("--depth", type=click.IntRange(min=1), help="Measure only the first N documents (trec_eval -M).")
@click.option("--double-precision", is_flag=True, help="Compare scores in 64 bits, not in 32 as trec_eval up to 9.0.8.")
@click.option(
    "--duplicates",
    type=click.Choice(["refuse", "first"]),
    default="refuse",
    show_default=True,
    help="If a run lists a document twice for a query: refuse the run, or count the first.",
)
@click.option("--compare", is_flag=True, help="Test the other runs against the first.")
@click.option("--all-pairs", is_flag=True, help="Test every pair of runs.")
@click.option(
    "--test",
    type=click.Choice(["t", "randomisation"]),
    default="t",
    show_default=True,
    help="Significance test for the letters beside the values.",
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
    help="holm marks the better run of two that differ after Holm's correction, raw both runs that differ without it.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the randomisation test.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for programs.")
@click.pass_obj
def evaluate(global_options: dict[str, Any], /, **options: Any) -> None:
    """Measure RUNS against QRELS as trec_eval does, and test their differences.

    \b
    osrerank evaluate qrels.txt bm25.run reranked.run -m nDCG@10 -m AP --compare

    A run has six columns (TREC) or three (MS MARCO: query, document, rank); files can be gzipped. Without -m:
    nDCG@10, RR@10, AP and R@100.
    """
    compares = options["compare"] or options["all_pairs"]
    if options["marks"] == "raw" and not compares:
        raise click.UsageError("--marks raw needs --compare or --all-pairs")
    report = _build_report(options, compares=compares)
    if options["as_json"] or global_options["as_json"]:
        click.echo(json.dumps(report.as_json(per_query=options["per_query"]), indent=2))
    elif options["as_csv"]:
        click.echo(report.as_csv(per_query=options["per_query"]), nl=False)
    else:
        _print_tables(report, options)


def _build_report(options: dict[str, Any], *, compares: bool) -> "Report":
    """Read and measure the runs, and print warnings. If ``compares`` is set, also test their differences."""
    from osrerank.evaluation import measures, report, significance
    from osrerank.formats import trec

    averaging = measures.Averaging(
        complete=options["complete"],
        relevance_level=options["relevance_level"],
        depth=options["depth"],
        single_precision=not options["double_precision"],
    )
    official_measures = (measures.MSMARCO,) if options["msmarco"] else ()
    names = (*options["measures"], *official_measures) or measures.DEFAULT_MEASURES
    qrels = trec.read_qrels(options["qrels"])
    runs = _read_runs(options["runs"], options["duplicates"])
    evaluations = [measures.evaluate(qrels, run, names, averaging) for run in runs]
    for run, evaluation in zip(runs, evaluations, strict=True):
        judgments = measures.select_judgments(qrels, run.rankings, run.name, complete=averaging.complete)
        _warn_of_undefined_values(evaluation, len(judgments))
    _warn_of_different_queries(evaluations)
    _warn_of_self_hits(runs)
    _warn_of_partial_queries(options["runs"])
    if not compares:
        return report.Report(evaluations, averaging, comparisons=(), letters={})
    comparisons = significance.compare_runs(evaluations, all_pairs=options["all_pairs"], seed=options["seed"])
    letters = significance.letter_significant_runs(
        comparisons, [run.name for run in runs], test=options["test"], alpha=options["alpha"], marks=options["marks"]
    )
    return report.Report(evaluations, averaging, comparisons, letters, options["marks"])


def _warn(message: str) -> None:
    click.echo(f"Warning: {message}", err=True)


def _warn_of_undefined_values(evaluation: "Evaluation", n_queries: int) -> None:
    """Warn of measures that are undefined for some queries, as Accuracy is without a relevant hit."""
    for measure, values in evaluation.per_query.items():
        n_missing = n_queries - len(values)
        if n_missing > 0:
            queries = f"{n_missing} of {n_queries} queries of {evaluation.run}"
            _warn(f"{measure} is undefined for {queries}, which are left out of its mean")


def _warn_of_self_hits(runs: "Sequence[Run]") -> None:
    """Warn of queries that retrieve themselves. In some collections, queries are documents of the corpus."""
    from osrerank.evaluation.self_hits import count_self_hits

    for run in runs:
        rankings = {
            query_id: [document.doc_id for document in documents] for query_id, documents in run.rankings.items()
        }
        count = count_self_hits(rankings)
        if count:
            finding = f"in {run.name}, the top document of {count} of {len(rankings)} queries has the query's id"
            _warn(f"{finding}; to leave it out, as BEIR does, use osrerank run --exclude-query-ids")


def _warn_of_different_queries(evaluations: "Sequence[Evaluation]") -> None:
    # the queries for which any measure has a value
    ids_by_run = {evaluation.run: frozenset().union(*evaluation.per_query.values()) for evaluation in evaluations}
    if len(set(ids_by_run.values())) > 1:
        counts = ", ".join(f"{run} {len(query_ids)}" for run, query_ids in ids_by_run.items())
        _warn(f"the runs cover different judged queries ({counts}); set --complete to count all")


def _warn_of_partial_queries(paths: Sequence[Path]) -> None:
    """Warn of queries that were reranked only in part, as the side file ``NAME.run.jsonl`` of a run says."""
    from osrerank.errors import EvaluationError
    from osrerank.evaluation.side_file import read_records

    for path in paths:
        side_file = path.with_name(f"{path.name}.jsonl")
        if not side_file.is_file():
            continue
        with suppress(EvaluationError):  # the file can be something else than a side file
            n_partial = sum(record.is_partial for record in read_records(side_file))
            if n_partial:
                _warn(f"{path} contains {n_partial} partly reranked queries; see {side_file}")


def _read_runs(paths: Sequence[Path], duplicates: "Duplicates") -> list["Run"]:
    """Read the runs. Each is named after its file, or by its path if several files share the name."""
    from osrerank.formats.trec import read_run

    stems = Counter(path.stem for path in paths)
    return [
        replace(read_run(path, duplicates=duplicates), name=path.stem if stems[path.stem] == 1 else str(path))
        for path in paths
    ]


def _print_tables(report: "Report", options: dict[str, Any]) -> None:
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
