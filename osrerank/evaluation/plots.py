"""Plot figures with matplotlib and write them as SVG, PNG or PDF, without a display.

All functions raise `ConfigError` for a file name with another suffix. The same arguments always give the same bytes.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ConfigError
from osrerank.evaluation.tradeoff import Point
from osrerank.formats.files import write_atomically

FORMATS = (".svg", ".png", ".pdf")
SIZE_INCHES = (5.2, 3.6)
"""The width and height of a figure."""
DOTS_PER_INCH = 200
MARKERS = "osD^vPX"
"""Matplotlib's characters for circle, square, diamond, triangles, plus and cross."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The colours of Okabe and Ito, which colour-blind readers can distinguish. Their yellow is left out as too faint."""


def plot_tradeoff(path: Path, curves: Mapping[str, Sequence[Point]], measure: str) -> None:
    """Plot quality against inferences per query, with a line for each curve.

    Points are labelled with k0 (how many candidates monoBERT scores) or k1 (how many duoBERT compares in pairs), but
    not where duoBERT compares only a sample of the pairs.
    """
    with _new_figure(path) as axes:
        for index, (label, points) in enumerate(curves.items()):
            sorted_points = sorted(points, key=lambda point: point.inferences)
            _draw_curve(axes, index, label, [(point.inferences, point.quality) for point in sorted_points])
        all_points = chain.from_iterable(curves.values())
        with_all_pairs = (point for point in all_points if point.setting.aggregation != "sample")
        _label_depths(axes, with_all_pairs)
        axes.set_xlabel("Inferences per query")
        axes.set_ylabel(measure)
        axes.margins(x=0.08, y=0.12)
        if len(curves) > 1:
            axes.legend(frameon=False, fontsize=8)


def plot_ap_by_a(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Plot AP against a, the weight of the first pass in Birch's score, with a line for each curve.

    Each curve has pairs (a, AP), by rising a.
    """
    with _new_figure(path) as axes:
        for index, (label, points) in enumerate(curves.items()):
            _draw_curve(axes, index, label, points)
        axes.set_xlabel("Share a of the first pass")
        axes.set_ylabel("AP")
        axes.legend(frameon=False, fontsize=8)


def plot_training(path: Path, losses: Sequence[tuple[int, float]], measures: Sequence[tuple[int, float]]) -> None:
    """Plot the loss against the training step, and on a second axis the measure on the development set.

    ``losses`` and ``measures`` have pairs (step, value). Without a development set, ``measures`` is empty.
    """
    with _new_figure(path) as axes:
        axes.plot(*zip(*losses, strict=True), linewidth=1.0, color=COLOURS[0])
        axes.set_xlabel("Step")
        axes.set_ylabel("Loss", color=COLOURS[0])
        if measures:
            right_axes = axes.twinx()
            right_axes.plot(*zip(*measures, strict=True), marker="o", markersize=4, linewidth=1.3, color=COLOURS[1])
            right_axes.set_ylabel("Measure on the development set", color=COLOURS[1])


def plot_reliability(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Plot the fraction of relevant hits against their probability, with a line for each curve, and the diagonal.

    Each curve has a pair (mean probability, fraction of relevant hits) for each bin, by rising probability. Where a
    curve is on the diagonal, hits are relevant as often as their probability says.
    """
    with _new_figure(path) as axes:
        axes.plot([0, 1], [0, 1], linestyle="--", linewidth=1.0, color="0.5")  # the diagonal, in grey
        for index, (label, points) in enumerate(curves.items()):
            _draw_curve(axes, index, label, points)
        axes.set_xlabel("Probability")
        axes.set_ylabel("Share of relevant hits")
        axes.legend(frameon=False, fontsize=8)


def check_plot(path: Path) -> None:
    """Check that a plot can be written to a path, before computing it.

    Raises:
        ConfigError: the file name has another suffix than those in `FORMATS`.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot plot to {path}: end its name in {', '.join(FORMATS)}", setting="plot", source="flag")
    require("matplotlib", extra="eval")


@contextlib.contextmanager
def _new_figure(path: Path) -> Iterator[Any]:
    """Yield the axes of a new figure to draw into. Write the figure when the block ends."""
    check_plot(path)
    matplotlib = require("matplotlib", extra="eval")
    figure_module = require("matplotlib.figure", extra="eval")
    # The salt makes the ids in an SVG file repeatable.
    with matplotlib.rc_context({"svg.hashsalt": "osrerank", "font.size": 9, "svg.fonttype": "none"}):
        figure = figure_module.Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        yield axes
        axes.grid(visible=True, color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        # Remove the current date, which matplotlib writes into SVG and PDF files.
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
        image = io.BytesIO()
        figure.savefig(image, format=path.suffix[1:].lower(), dpi=DOTS_PER_INCH, metadata=metadata)
        write_atomically(path, [image.getvalue()])


def _draw_curve(axes: Any, index: int, label: str, points: Sequence[tuple[float, float]]) -> None:
    """Draw a curve through points ``(x, y)``. Its index decides its style: the first 49 styles are different."""
    colour = COLOURS[index % len(COLOURS)]
    n_used_palettes = index // len(COLOURS)
    marker = MARKERS[(index + n_used_palettes) % len(MARKERS)]  # when the colours repeat, each gets another marker
    axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, linewidth=1.3, color=colour, label=label)


def _label_depths(axes: Any, points: Iterable[Point]) -> None:
    """Write the depth, such as k_1=50, below points. Of several points with the same x, only the lowest has a label."""
    lowest_by_x: dict[float, Point] = {}
    for point in points:
        lowest = lowest_by_x.get(point.inferences)
        if lowest is None or point.quality < lowest.quality:
            lowest_by_x[point.inferences] = point
    for point in lowest_by_x.values():
        label = f"$k_1$={point.setting.k1}" if point.setting.k1 else f"$k_0$={point.setting.k0}"
        position = (point.inferences, point.quality)
        axes.annotate(label, position, xytext=(4, -9), textcoords="offset points", fontsize=7, color="0.25")
