"""``osrerank tradeoff``: measure quality against inferences per query, from one scored run."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank._removed import replacement_for
from osrerank.errors import EvaluationError
from osrerank.options.pairs import PAIR_AGGREGATIONS

if TYPE_CHECKING:
    from osrerank.evaluation.tradeoff import OperatingPoint, Point, ScoredRun

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
K0, K1 = (0, 10, 20, 50, 100, 200, 500, 1000), (0, 10, 20, 30, 40, 50)
SAME_PAIRS = ("scorer", "mono", "duo", "blend", "vectors_weight", "rerank.fields", "rerank.separator")
"""The options in a side file that determine a run's pairs, besides its depths."""
SAMPLE_SIZE = 10
COLUMNS = ("curve", "k0", "k1", "inferences", "quality")


class IntegersParam(click.ParamType[tuple[int, ...]]):
    """The type of a parameter with whole numbers, separated by commas."""

    name = "N,N,..."

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse the numbers, and refuse numbers below the minimum."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() for part in parts):
            self.fail(f"{value!r} is not a list of whole numbers such as 0,10,20", param, ctx)
        if min(map(int, parts)) < self._least:
            self.fail(f"{value!r}: the smallest allowed number is {self._least}", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


@click.command()
@click.argument("qrels", type=FILE)
@click.argument("run", type=FILE)
@click.option("-m", "--measure", default="nDCG@10", show_default=True, help="Any measure of `osrerank evaluate`.")
@click.option("--k0", type=IntegersParam(), help="Depths of monoBERT.  [default: 0,10,20,50,100,... down to RUN's]")
@click.option("--k1", type=IntegersParam(), help="Depths of duoBERT, if it ran.  [default: 0,10,20,... down to RUN's]")
@click.option(
    "--duo-k0", type=IntegersParam(), help="Depths of monoBERT before duoBERT, one curve each.  [default: RUN's]"
)
@click.option("--pairs-from", type=FILE, multiple=True, help="Side file of another run, whose pairs are used, too.")
@click.option(
    "--pairs",
    type=click.Choice(PAIR_AGGREGATIONS),
    multiple=True,
    help="Pair aggregations.  [default: sum, binary, min, max]",
)
@click.option(
    "--sample-size",
    "sample_sizes",
    type=IntegersParam(1),
    multiple=True,
    help="How many others --pairs sample compares each candidate with, one curve each.  [default: 10]",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the samples.")
@click.option(
    "--complete", is_flag=True, help="Average over all judged queries, counting 0 for queries that RUN lacks."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the curves to a .svg, .png or .pdf."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for programs.")
@click.pass_obj
def tradeoff(obj: dict[str, Any], /, **options: Any) -> None:
    """Show the cost and quality of each reranking depth, without scoring again.

    \b
    osrerank run --queries topics.tsv --index passages --output deep.run --depth 1000
    osrerank tradeoff qrels.txt deep.run.jsonl -m RR@10 --plot tradeoff.svg
    osrerank tradeoff qrels.txt duo.run.jsonl --pairs-from duo50.run.jsonl --duo-k0 50,1000

    RUN is the side file that `osrerank run` and `osrerank rerank` write beside a run. The cost is the mean number of
    inferences per query: k0 for monoBERT, and k1(k1-1) more for duoBERT's pairs. A blended run gets one curve with the
    first pass and one without; duoBERT's curves start from the blend. The --hits of a blended run must be at least its
    --depth. A run has only the pairs of its --depth: for another --duo-k0, make a run of that --depth and name it with
    --pairs-from. For a run of vectors-mono, k0 is its --mono-depth, and 0 is the order by vectors.
    """
    curves = _curves(options)
    if options["plot"]:
        from osrerank.evaluation.plots import plot_tradeoff

        plot_tradeoff(options["plot"], curves, options["measure"])
    _print(_rows(curves), options["measure"], as_json=options["as_json"] or obj["as_json"], as_csv=options["as_csv"])


def _curves(options: dict[str, Any]) -> "Mapping[str, Sequence[Point]]":
    from osrerank.evaluation.measures import Averaging
    from osrerank.evaluation.tradeoff import compute_curve, join_pairs, max_k1
    from osrerank.formats.trec import read_qrels

    run, *other_runs = runs = _read(options["run"], *options["pairs_from"])
    qrels, averaging = read_qrels(options["qrels"]), Averaging(complete=options["complete"])
    settings = _settings(run, min(max_k1(scored.depths) for scored in runs), options)
    all_settings = tuple(chain.from_iterable(settings.values()))
    points = iter(compute_curve(join_pairs(run, *other_runs), all_settings, qrels, options["measure"], averaging))
    return {label: list(islice(points, len(setting))) for label, setting in settings.items()}


def _read(run: Path, *other_runs: Path) -> "list[ScoredRun]":
    """Open the scored runs, after checking that their pairs can be combined.

    Raises:
        EvaluationError: a file is not a side file, or its pairs are of other models, texts or blends than the run's.
    """
    from osrerank.evaluation.side_file import read_options
    from osrerank.evaluation.tradeoff import ScoredRun

    options = read_options(run)
    for other_run in other_runs:
        differs = next((name for name in SAME_PAIRS if read_options(other_run).get(name) != options.get(name)), None)
        if differs:
            raise EvaluationError(f"{other_run} and {run} differ in {differs}, so their pairs cannot be combined")
    blend = tuple(options["blend"]) if options.get("blend") else None
    if blend and (fix := replacement_for(f"rerank.blend.{blend[0]}")):
        raise EvaluationError(f"{run} was blended with {blend[0]}, which is gone; {fix}, and make the run again")
    return [ScoredRun(path, blend) for path in (run, *other_runs)]


def _settings(run: "ScoredRun", width: int, options: dict[str, Any]) -> "dict[str, list[OperatingPoint]]":
    """Return the points of each curve: those of the options, or all that the run's scores allow."""
    from osrerank.evaluation.tradeoff import OperatingPoint, max_k0

    depth = max_k0(run.depths)
    k0 = options["k0"] or tuple(sorted({*(k for k in K0 if k < depth), depth}))
    settings = {"vectors, then monoBERT" if run.is_after_vectors else "monoBERT": [OperatingPoint(k) for k in k0]}
    if run.is_blended:
        settings["monoBERT + first pass"] = [OperatingPoint(k, blended=True) for k in k0]
    if not (width or options["k1"]):
        return settings
    k1 = options["k1"] or tuple(sorted({*(k for k in K1 if k < width), width}))
    sizes = tuple(dict.fromkeys(chain.from_iterable(options["sample_sizes"]))) or (SAMPLE_SIZE,)
    for base in options["duo_k0"] or (depth,):
        for pairs in options["pairs"] or [name for name in PAIR_AGGREGATIONS if name != "sample"]:
            for size in sizes if pairs == "sample" else sizes[:1]:
                drawn = f" of {size}" if pairs == "sample" and len(sizes) > 1 else ""
                label = f"duoBERT {pairs.capitalize()}{drawn}, k0 = {base}"
                sampling = {"sample_size": size, "seed": options["seed"], "blended": run.is_blended}
                settings[label] = [OperatingPoint(base, k, pairs, **sampling) for k in k1]
    return settings


def _rows(curves: "Mapping[str, Sequence[Point]]") -> list[tuple[str, int, int, float, float]]:
    return [
        (label, point.setting.k0, point.setting.k1, point.inferences, point.quality)
        for label, points in curves.items()
        for point in points
    ]


def _print(rows: Sequence[tuple[str, int, int, float, float]], measure: str, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        points = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        click.echo(json.dumps({"measure": measure, "points": points}, indent=2))
    elif as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
        click.echo(text.getvalue(), nl=False)
    else:
        from osrerank.cli.tables import console, table

        shown = [(label, str(k0), str(k1), f"{cost:.1f}", f"{value:.4f}") for label, k0, k1, cost, value in rows]
        console().print(table(["curve", "k0", "k1", "inferences/query", measure], shown))
