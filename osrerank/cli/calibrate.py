"""``osrerank calibrate``: fit probabilities of relevance to judgments on an index."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import open_client, wants_json

if TYPE_CHECKING:
    from osrerank.decision.calibrate import CalibrationFit

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--index", "-i", required=True, help="Index to search with the judged queries.")
@click.option("--queries", required=True, type=FILE, help="Queries, in any format that `osrerank run` reads.")
@click.option("--qrels", required=True, type=FILE, help="Judgments; a hit without one counts as not relevant.")
@click.option("--plot", type=OUTPUT, help="Draw the reliability diagram to a .svg, .png or .pdf.")
@click.option(
    "--output",
    "-o",
    type=OUTPUT,
    help="File to write.  [default: beside the settings file, ending in .calibration.json]",
)
@click.pass_context
def calibrate(
    context: click.Context, /, *, index: str, queries: Path, qrels: Path, plot: Path | None, output: Path | None
) -> None:
    """Fit the probability that a hit is relevant, so that thresholds have a meaning.

    \b
    osrerank calibrate --index articles --queries queries.tsv --qrels qrels.txt --plot reliability.svg
    client.search(text, index="articles", rerank={"cutoff": {"precision": 0.9}})

    The queries are searched with the index's options. The map is Platt's or an isotonic one, whichever fits held-out
    queries better. It is valid only for this model, these options and these fields; a search with others is not cut
    off, and its response reports that.
    """
    from osrerank.decision.calibrate import calibrate as fitted_to
    from osrerank.evaluation.plots import check_plot, plot_reliability
    from osrerank.formats.topics import read_queries
    from osrerank.formats.trec import read_qrels
    from osrerank.thresholds.calibration import write_calibration

    if plot:
        check_plot(plot)
    queries_read, judged = read_queries(queries), read_qrels(qrels)
    with closing(open_client(context)) as client:
        fitted = fitted_to(client, index, queries_read, judged, advance=_tracked)
        file = output or client.searcher.calibrations.file
    write_calibration(file, index, fitted.calibration)
    if plot:
        bins_by_name = {"the model's own": fitted.before, "calibrated, on held-out queries": fitted.after}
        curves = {
            name: [(bin_.predicted, bin_.measured) for bin_ in bins if bin_.hits] for name, bins in bins_by_name.items()
        }
        plot_reliability(plot, curves)
    _say(file, index, fitted, as_json=wants_json(context))


def _tracked(queries: Any) -> Any:
    """Return the queries; show on a terminal how many have been taken."""
    from rich.progress import track

    from osrerank.cli.tables import console

    screen = console(stderr=True)
    return track(queries, "Searching", console=screen, disable=not screen.is_terminal)


def _say(file: Path, index: str, fitted: "CalibrationFit", *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"file": str(file), "index": index, **fitted.as_json()}))
        return
    evidence = fitted.calibration.evidence
    click.echo(f"{file}: {index}, {fitted.calibration.map.name}, by " + _COUNTS.format(**evidence))
    click.echo("expected calibration error {ece_before:.4f} before, {ece_after:.4f} after".format(**evidence))
    for precision in (0.5, 0.7, 0.9):
        least = fitted.calibration.threshold_for(precision)
        threshold = "not reached" if least is None else f"hits with a probability of at least {least:.3f}"
        click.echo(f"precision {precision:g}: {threshold}")


_COUNTS = "{queries:,} queries with {relevant:,} relevant hits among {hits:,}"
