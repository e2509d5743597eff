"""The reliability diagram of a calibration, by itself or in a page with its numbers."""

from collections.abc import Sequence
from pathlib import Path

from osrerank.decision.calibrate import Fitted
from osrerank.decision.charts import Axis, chart, dots, line
from osrerank.decision.fitting import Bin
from osrerank.decision.page import drawing, figure, figures, heading, page, paragraph, rows
from osrerank.errors import ConfigError
from osrerank.formats.files import write_atomically

TENTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
FORMATS = (".html", ".svg")


def check_format(path: Path) -> None:
    """Refuse a file that is neither HTML nor SVG by its name.

    Raises:
        ConfigError: it is neither.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write a diagram to {path}: end it in .html or .svg", setting="plot", source="flag")


def write_reliability(path: Path, index: str, fitted: Fitted) -> None:
    """Write the diagram: ``.svg``, or ``.html`` with numbers.

    Raises:
        ConfigError: the file's name has another ending.
    """
    check_format(path)
    is_page = path.suffix.lower() == ".html"
    write_atomically(path, [_page(index, fitted) if is_page else drawing(reliability_diagram(fitted))])


def reliability_diagram(fitted: Fitted) -> str:
    """Return the diagram of probability and measured relevance, before and after."""
    axes = Axis("Probability", 0, 1, TENTHS), Axis("Share of relevant hits", 0, 1, TENTHS)
    drawn = [line([(0, 0), (1, 1)], "quiet", is_dashed=True)]
    for kind, bins in (("two", fitted.before), ("one", fitted.after)):
        points = [(one.said, one.measured, _said(one)) for one in bins if one.hits]
        drawn += [line([point[:2] for point in points], kind), dots(points, kind)]
    names = [("two", "the model's own"), ("one", "calibrated, on held-out queries")]
    return chart("Reliability diagram", *axes, *drawn, names=names)


def _said(one: Bin) -> str:
    return f"{one.hits} hits: probability {one.said:.3f}, relevant {one.measured:.3f}"


def _page(index: str, fitted: Fitted) -> str:
    evidence = fitted.calibration.evidence
    counts = "{queries:,} judged queries, {hits:,} hits, {relevant:,} of them relevant".format(**evidence)
    errors = "Expected calibration error: {ece_before:.4f} before, {ece_after:.4f} after.".format(**evidence)
    kind = f"The map is {fitted.calibration.map.name}: the lower log loss on held-out queries."
    losses = [[name, f"{loss:.5f}"] for name, loss in fitted.losses.items()]
    return page(
        f"Calibration of {index}",
        heading(f"How probable is relevance in {index}?", 1),
        paragraph(counts, "quiet"),
        paragraph(f"{errors} {kind}"),
        figures(figure("Probability and measured relevance", reliability_diagram(fitted))),
        heading("Precision that may be promised"),
        rows(("least probability", "precision"), _thresholds(fitted)),
        heading("Maps"),
        rows(("map", "log loss"), losses),
        heading("Hits by probability"),
        rows(("probability", "hits", "mean", "relevant"), [_row(one) for one in fitted.after if one.hits]),
    )


def _row(one: Bin) -> list[str]:
    return [f"{one.low:.2f} to {one.high:.2f}", f"{one.hits:,}", f"{one.said:.3f}", f"{one.measured:.3f}"]


def _thresholds(fitted: Fitted) -> Sequence[Sequence[str]]:
    found = ((tenth / 10, fitted.calibration.least_probability(tenth / 10)) for tenth in range(5, 10))
    return [["not reached" if least is None else f"{least:.3f}", f"{precision:g}"] for precision, least in found]
