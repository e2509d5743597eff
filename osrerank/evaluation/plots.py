"""Draw figures for a paper, without a display."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ConfigError
from osrerank.evaluation.tradeoff import Point

FORMATS = (".svg", ".png", ".pdf")
INCHES = (5.2, 3.6)
DOTS_PER_INCH = 200
MARKERS = "osD^vPX"
# Okabe and Ito's colours, which colour-blind readers can distinguish, without yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def plot_tradeoff(path: Path, curves: Mapping[str, Sequence[Point]], measure: str) -> None:
    """Draw quality against inferences per query, with a line for each curve and points labelled with k0 or k1.

    The same points make the same file, byte for byte.

    Args:
        path: the file to write, ``.svg``, ``.png`` or ``.pdf``.
        curves: label -> points.
        measure: the vertical axis' name.

    Raises:
        ConfigError: the file's name has another ending.
    """
    with _axes(path) as axes:
        for number, (label, points) in enumerate(curves.items()):
            _draw(axes, label, sorted(points, key=lambda point: point.inferences), number)
        _label(axes, (point for points in curves.values() for point in points if point.setting.pairs != "sample"))
        axes.set_xlabel("Inferences per query")
        axes.set_ylabel(measure)
        axes.margins(x=0.08, y=0.12)
        if len(curves) > 1:
            axes.legend(frameon=False, fontsize=8)


def plot_shares(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], measure: str) -> None:
    """Draw a measure against the first pass's share a, a line for each curve.

    Args:
        path: as for `plot_tradeoff`.
        curves: label -> pairs (a, value), by rising a.
        measure: the vertical axis' name.

    Raises:
        ConfigError: the file's name has another ending.
    """
    with _axes(path) as axes:
        for number, (label, points) in enumerate(curves.items()):
            marker, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, linewidth=1.3, color=colour, label=label)
        axes.set_xlabel("Share a of the first pass")
        axes.set_ylabel(measure)
        axes.legend(frameon=False, fontsize=8)


def plot_curve(path: Path, losses: Sequence[tuple[int, float]], measures: Sequence[tuple[int, float]]) -> None:
    """Draw a training's loss against its steps, and the measure on the development set on a second axis.

    Args:
        path: as for `plot_tradeoff`.
        losses: pairs of step and loss.
        measures: pairs of step and value, higher is better; empty without a development set.

    Raises:
        ConfigError: the file's name has another ending.
    """
    with _axes(path) as axes:
        axes.plot(*zip(*losses, strict=True), linewidth=1.0, color=COLOURS[0])
        axes.set_xlabel("Step")
        axes.set_ylabel("Loss", color=COLOURS[0])
        if measures:
            right = axes.twinx()
            right.plot(*zip(*measures, strict=True), marker="o", markersize=4, linewidth=1.3, color=COLOURS[1])
            right.set_ylabel("Measure on the development set", color=COLOURS[1])


def plot_reliability(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draw the share of relevant hits against their probability, with a line for each curve, and the diagonal.

    Args:
        path: as for `plot_tradeoff`.
        curves: label -> pairs (mean probability of a group of hits, relevant share of the group), by rising
            probability.

    Raises:
        ConfigError: the file's name has another ending.
    """
    with _axes(path) as axes:
        axes.plot([0, 1], [0, 1], linestyle="--", linewidth=1.0, color="0.5")
        for number, (label, points) in enumerate(curves.items()):
            marker, colour = MARKERS[number], COLOURS[number]
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, linewidth=1.3, color=colour, label=label)
        axes.set_xlabel("Probability")
        axes.set_ylabel("Share of relevant hits")
        axes.legend(frameon=False, fontsize=8)


def check_plot(path: Path) -> None:
    """Refuse a file name to which no plot can be written, before anything is computed for the plot.

    Raises:
        ConfigError: the name ends in none of the formats.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot plot to {path}: end it in {', '.join(FORMATS)}", setting="plot", source="flag")
    require("matplotlib", extra="eval")


@contextlib.contextmanager
def _axes(path: Path) -> Iterator[Any]:
    """Yield the axes of a figure that is written at the end."""
    check_plot(path)
    matplotlib = require("matplotlib", extra="eval")
    figure_module = require("matplotlib.figure", extra="eval")
    with matplotlib.rc_context({"svg.hashsalt": "osrerank", "font.size": 9, "svg.fonttype": "none"}):
        figure = figure_module.Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        yield axes
        axes.grid(visible=True, color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        dated = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata=dated)


def _draw(axes: Any, label: str, points: Sequence[Point], number: int) -> None:
    axes.plot(
        [point.inferences for point in points],
        [point.quality for point in points],
        marker=MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],  # no two curves share marker and colour
        markersize=4,
        linewidth=1.3,
        color=COLOURS[number % len(COLOURS)],
        label=label,
    )


def _label(axes: Any, points: Iterable[Point]) -> None:
    """Write depths below and right of the points, away from a rising curve; only once if curves share a cost."""
    lowest: dict[float, Point] = {}
    for point in points:
        best = lowest.setdefault(point.inferences, point)
        if point.quality < best.quality:
            lowest[point.inferences] = point
    for point in lowest.values():
        depth = f"$k_1$={point.setting.k1}" if point.setting.k1 else f"$k_0$={point.setting.k0}"
        position = (point.inferences, point.quality)
        axes.annotate(depth, position, xytext=(4, -9), textcoords="offset points", fontsize=7, color="0.25")
