"""``osrerank tradeoff``: show the cost and quality of every reranking depth, computed from the scores of one run.

k0 is the number of candidates that monoBERT scores, and k1 the number of its best candidates that duoBERT compares.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank._removed import find_replacement
from osrerank.cli.path_types import FILE, OUTPUT_FILE
from osrerank.errors import EvaluationError
from osrerank.options.pairs import PAIR_AGGREGATIONS

if TYPE_CHECKING:
    from osrerank.evaluation.tradeoff import Point, RerankSetting, ScoredRun

DEFAULT_K0 = (0, 10, 20, 50, 100, 200, 500, 1000)
DEFAULT_K1 = (0, 10, 20, 30, 40, 50)
PAIR_OPTIONS = ("scorer", "mono", "duo", "blend", "vectors_weight", "rerank.fields", "rerank.separator")
"""The options that determine pair probabilities. Only runs in which they are equal can be combined."""
DEFAULT_SAMPLE_SIZE = 10
COLUMNS = ("curve", "k0", "k1", "inferences", "quality")
Row = tuple[str, int, int, float, float]
"""The values of `COLUMNS` for a point of a curve, such as ``("monoBERT", 100, 0, 100.0, 0.712)``."""


class IntegersParam(click.ParamType[tuple[int, ...]]):
    """The type of a parameter that is a list of whole numbers, separated by commas."""

    name = "N,N,..."

    def __init__(self, minimum: int = 0) -> None:
        self._minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse the numbers, and remove duplicates."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() for part in parts):
            self.fail(f"{value!r} is not a list of whole numbers such as 0,10,20", param, ctx)
        if min(map(int, parts)) < self._minimum:
            self.fail(f"{value!r} contains a number below {self._minimum}", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


@click.command()
@click.argument("qrels", type=FILE)
@click.argument("run", type=FILE)
@click.option("-m", "--measure", default="nDCG@10", show_default=True, help="Any measure of `osrerank evaluate`.")
@click.option("--k0", type=IntegersParam(), help="Depths of monoBERT.  [default: 0,10,20,50,100,... up to the run's]")
@click.option(
    "--k1", type=IntegersParam(), help="Depths of duoBERT, if it ran.  [default: 0,10,20,... up to the run's]"
)
@click.option(
    "--duo-k0",
    type=IntegersParam(),
    help="Depths of monoBERT before duoBERT, one curve each.  [default: the run's depth]",
)
@click.option("--pairs-from", type=FILE, multiple=True, help="Side file of another run whose pairs are also used.")
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
    help="With --pairs sample: number of rivals of each candidate, one curve per number.  [default: 10]",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the samples.")
@click.option("--complete", is_flag=True, help="Average over all judged queries; queries missing from RUN count 0.")
@click.option("--plot", type=OUTPUT_FILE, help="Draw the curves to a .svg, .png or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for programs.")
@click.pass_obj
def tradeoff(global_options: dict[str, Any], /, **options: Any) -> None:
    """Show the cost and quality of each reranking depth, without scoring again.

    \b
    osrerank run --queries topics.tsv --index passages --output deep.run --depth 1000
    osrerank tradeoff qrels.txt deep.run.jsonl -m RR@10 --plot tradeoff.svg
    osrerank tradeoff qrels.txt duo.run.jsonl --pairs-from duo50.run.jsonl --duo-k0 50,1000

    RUN is the side file that `osrerank run` and `osrerank rerank` write beside a run. The cost is the mean number of
    inferences per query: k0 for monoBERT, and k1(k1-1) for duoBERT's pairs.

    A blended run gets two curves for monoBERT, with and without the first pass's score. DuoBERT reranks the blended
    order. A blended run needs --hits of at least its --depth.

    A run contains only the pairs for its --depth. For another --duo-k0, create a run with that --depth and pass it
    with --pairs-from.

    For the pipeline vectors-mono, k0 is the number of documents that the cross-encoder reads (--mono-depth). At k0 = 0,
    the curve shows the order by vectors.
    """
    curves = _compute_curves(options)
    if options["plot"]:
        from osrerank.evaluation.plots import plot_tradeoff

        plot_tradeoff(options["plot"], curves, options["measure"])
    as_json = options["as_json"] or global_options["as_json"]
    _print_points(_list_rows(curves), options["measure"], as_json=as_json, as_csv=options["as_csv"])


def _compute_curves(options: dict[str, Any]) -> "Mapping[str, Sequence[Point]]":
    """Return the points of each curve, by the curve's label."""
    from osrerank.evaluation.measures import Averaging
    from osrerank.evaluation.tradeoff import add_pairs, compute_curve, find_max_k1
    from osrerank.formats.trec import read_qrels

    runs = _open_runs(options["run"], *options["pairs_from"])
    qrels = read_qrels(options["qrels"])
    averaging = Averaging(complete=options["complete"])
    k1_limit = min(find_max_k1(run.depths) for run in runs)
    settings_by_label = _choose_settings(runs[0], k1_limit, options)
    all_settings = tuple(chain.from_iterable(settings_by_label.values()))
    # the points of all curves are computed together, because the side file is then read once
    all_points = iter(compute_curve(add_pairs(*runs), all_settings, qrels, options["measure"], averaging))
    return {label: list(islice(all_points, len(settings))) for label, settings in settings_by_label.items()}


def _open_runs(run: Path, *other_runs: Path) -> "list[ScoredRun]":
    """Open the side files of runs, after checking that their pairs can be combined.

    Raises:
        EvaluationError: a file is not a side file, or the runs differ in an option that determines pairs.
    """
    from osrerank.evaluation.side_file import read_options
    from osrerank.evaluation.tradeoff import ScoredRun

    options = read_options(run)
    for other_run in other_runs:
        other_options = read_options(other_run)
        for name in PAIR_OPTIONS:
            if other_options.get(name) != options.get(name):
                values = f"{other_options.get(name)!r} in {other_run}, and {options.get(name)!r} in {run}"
                raise EvaluationError(f"the pairs of the two runs cannot be combined, because {name} is {values}")
    blend = tuple(options["blend"]) if options.get("blend") else None
    if blend:
        method, _weight = blend
        fix = find_replacement(f"rerank.blend.{method}")
        if fix:
            raise EvaluationError(
                f'{run} was made with the blend "{method}", which was removed; {fix}, and create the run again'
            )
    return [ScoredRun(path, blend) for path in (run, *other_runs)]


def _choose_settings(run: "ScoredRun", k1_limit: int, options: dict[str, Any]) -> "dict[str, list[RerankSetting]]":
    """Return each curve's settings by its label, such as ``duoBERT Sum, k0 = 1000``.

    ``k1_limit`` is the number of candidates that duoBERT compared, or 0 if it did not run.
    """
    from osrerank.evaluation.tradeoff import RerankSetting, find_max_k0

    k0_limit = find_max_k0(run.depths)
    has_no_scores = k0_limit == k1_limit == 0 and any(query.n_hits for query in run.depths)
    if has_no_scores and not options["k0"]:
        raise EvaluationError(
            f"{options['run']} has no scores of whole documents for each of its queries, so there is no curve; create "
            "the run again, reranked and without --sentences (osrerank tune chooses the weights of sentences)"
        )
    k0 = options["k0"] or _default_depths(DEFAULT_K0, k0_limit)
    label = "vectors, then monoBERT" if run.is_vectors_mono else "monoBERT"
    curves = {label: [RerankSetting(depth) for depth in k0]}
    if run.is_blended:
        curves["monoBERT + first pass"] = [RerankSetting(depth, uses_blend=True) for depth in k0]
    if k1_limit == 0 and not options["k1"]:
        return curves
    k1 = options["k1"] or _default_depths(DEFAULT_K1, k1_limit)
    requested_sizes = chain.from_iterable(options["sample_sizes"])
    sizes = tuple(dict.fromkeys(requested_sizes)) or (DEFAULT_SAMPLE_SIZE,)
    aggregations = options["pairs"] or [name for name in PAIR_AGGREGATIONS if name != "sample"]
    for duo_k0, aggregation in product(options["duo_k0"] or (k0_limit,), aggregations):
        is_sampled = aggregation == "sample"
        for size in sizes if is_sampled else sizes[:1]:  # other aggregations ignore the size
            size_label = f" of {size}" if is_sampled and len(sizes) > 1 else ""
            label = f"duoBERT {aggregation.capitalize()}{size_label}, k0 = {duo_k0}"
            sampling = {"sample_size": size, "seed": options["seed"], "uses_blend": run.is_blended}
            curves[label] = [RerankSetting(duo_k0, depth, aggregation, **sampling) for depth in k1]
    return curves


def _default_depths(depths: Sequence[int], limit: int) -> tuple[int, ...]:
    """Return the depths below the limit, and the limit itself."""
    return (*(depth for depth in depths if depth < limit), limit)


def _list_rows(curves: "Mapping[str, Sequence[Point]]") -> list[Row]:
    return [
        (label, point.setting.k0, point.setting.k1, point.inferences, point.quality)
        for label, points in curves.items()
        for point in points
    ]


def _print_points(rows: Sequence[Row], measure: str, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        points = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        click.echo(json.dumps({"measure": measure, "points": points}, indent=2))
    elif as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
        click.echo(text.getvalue(), nl=False)
    else:
        from osrerank.cli.tables import console, table

        cells = [(label, str(k0), str(k1), f"{cost:.1f}", f"{value:.4f}") for label, k0, k1, cost, value in rows]
        console().print(table(["curve", "k0", "k1", "inferences/query", measure], cells))
