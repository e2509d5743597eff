"""``osrerank calibrate``: use judged queries to fit the map from a hit's score to its probability of relevance."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from osrerank.cli.options import INDEX, open_client, wants_json
from osrerank.cli.path_types import FILE, OUTPUT_FILE

if TYPE_CHECKING:
    from osrerank.decision.calibrate import CalibrationFit


@click.command()
@click.option("--index", "-i", type=INDEX, required=True, help="Index to search with the judged queries.")
@click.option("--queries", required=True, type=FILE, help="Queries, in any format that `osrerank run` reads.")
@click.option("--qrels", required=True, type=FILE, help="Judgments; a hit without one counts as not relevant.")
@click.option("--plot", type=OUTPUT_FILE, help="Draw the reliability diagram into a .svg, .png or .pdf file.")
@click.option(
    "--output",
    "-o",
    type=OUTPUT_FILE,
    help="File to write.  [default: beside the settings file, ending in .calibration.json]",
)
@click.pass_context
def calibrate(
    context: click.Context, /, *, index: str, queries: Path, qrels: Path, plot: Path | None, output: Path | None
) -> None:
    """Fit the probability that a hit is relevant, so that thresholds on it are meaningful.

    \b
    osrerank calibrate --index articles --queries queries.tsv --qrels qrels.txt --plot reliability.svg
    client.search(text, index="articles", rerank={"cutoff": {"precision": 0.9}})

    The queries are searched with the index's options. The calibration is Platt's or isotonic, whichever fits held-out
    queries better. It applies only to searches with the same model, options and fields. In other searches, thresholds
    remove no hits, and the response reports that.
    """
    from osrerank.cli.tables import track
    from osrerank.decision.calibrate import calibrate as fit_calibration
    from osrerank.evaluation.plots import check_plot, plot_reliability
    from osrerank.formats.topics import read_queries
    from osrerank.formats.trec import read_qrels
    from osrerank.thresholds.calibration import write_calibration

    if plot:
        check_plot(plot)
    query_set = read_queries(queries)
    judgments = read_qrels(qrels)
    with closing(open_client(context)) as client:
        fitted = fit_calibration(client, index, query_set, judgments, track=track)
        file = output or client.searcher.calibrations.file
    write_calibration(file, index, fitted.calibration)
    if plot:
        bins_by_label = {"not calibrated": fitted.before, "calibrated, on held-out queries": fitted.after}
        curves = {}
        for label, bins in bins_by_label.items():
            curves[label] = [(bin_.predicted, bin_.measured) for bin_ in bins if bin_.hits]
        plot_reliability(plot, curves)
    _print_report(file, index, fitted, as_json=wants_json(context))


def _print_report(file: Path, index: str, fitted: "CalibrationFit", *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"file": str(file), "index": index, **fitted.as_json()}))
        return
    evidence = fitted.calibration.evidence
    evidence_text = "{queries:,} queries with {relevant:,} relevant hits among {hits:,}".format(**evidence)
    click.echo(f"{file}: {index}, {fitted.calibration.map.name}, by {evidence_text}")
    click.echo("expected calibration error {ece_before:.4f} before, {ece_after:.4f} after".format(**evidence))
    for precision in (0.5, 0.7, 0.9):
        threshold = fitted.calibration.threshold_for(precision)
        condition = "not reached" if threshold is None else f"hits with a probability of at least {threshold:.3f}"
        click.echo(f"precision {precision:g}: {condition}")
