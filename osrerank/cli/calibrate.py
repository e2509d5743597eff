"""``osrerank calibrate``: fit the probability of relevance to an index's judgments."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import client_of, wants_json

if TYPE_CHECKING:
    from osrerank.decision.calibrate import Fitted

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--index", "-i", required=True, help="Index whose judged queries are searched.")
@click.option("--queries", required=True, type=FILE, help="Queries, in any form that `osrerank run` reads.")
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
    """Fit the probability that a hit is relevant, for thresholds that mean something.

    \b
    osrerank calibrate --index articles --queries queries.tsv --qrels qrels.txt --plot reliability.svg
    client.search(text, index="articles", rerank={"cutoff": {"precision": 0.9}})

    The queries are searched with the index's own options. Platt's map or an isotonic one is kept, whichever fits
    held-out queries better. The calibration holds for this model, these options and these fields; a search with others
    is not cut, and its response says so.
    """
    from osrerank.decision.calibrate import calibrate as fitted_to
    from osrerank.evaluation.plots import check_plot, plot_reliability
    from osrerank.formats.topics import read_queries
    from osrerank.formats.trec import read_qrels
    from osrerank.thresholds.calibration import write_calibration

    if plot:
        check_plot(plot)
    asked, judged = read_queries(queries), read_qrels(qrels)
    with closing(client_of(context)) as client:
        fitted = fitted_to(client, index, asked, judged, advance=_tracked)
        file = output or client.searcher.calibrations.file
    write_calibration(file, index, fitted.calibration)
    if plot:
        found = {"the model's own": fitted.before, "calibrated, on held-out queries": fitted.after}
        curves = {name: [(one.said, one.measured) for one in bins if one.hits] for name, bins in found.items()}
        plot_reliability(plot, curves)
    _say(file, index, fitted, as_json=wants_json(context))


def _tracked(queries: Any) -> Any:
    """Show progress on a terminal."""
    from rich.progress import track

    from osrerank.cli.tables import console

    screen = console(stderr=True)
    return track(queries, "Searching", console=screen, disable=not screen.is_terminal)


def _say(file: Path, index: str, fitted: "Fitted", *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"file": str(file), "index": index, **fitted.as_json()}))
        return
    evidence = fitted.calibration.evidence
    click.echo(f"{file}: {index}, {fitted.calibration.map.name}, by " + _COUNTS.format(**evidence))
    click.echo("expected calibration error {ece_before:.4f} before, {ece_after:.4f} after".format(**evidence))
    for precision in (0.5, 0.7, 0.9):
        least = fitted.calibration.least_probability(precision)
        said = "not reached" if least is None else f"hits of probability {least:.3f} and more"
        click.echo(f"precision {precision:g}: {said}")


_COUNTS = "{queries:,} queries with {relevant:,} relevant hits among {hits:,}"
