"""Diagrams as SVG for a report that needs no other file; colours follow the page's light or dark scheme."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 12.0, 12.0, 44.0
LINE = 18.0
"""Height of a line of the key."""
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #59636e; --line: #d1d9e0; --ground: #ffffff;
  --field: #f6f8fa; --one: #0a66a8; --two: #b8480b;
  --good: #116f38; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9da7b1; --line: #3a424c; --ground: #12161c;
  --field: #1a2028; --one: #63b3f0; --two: #f0955c;
  --good: #5fcf8a; --bad: #ff8b80; } }
svg { display: block; width: 100%; max-width: 460px; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .axis { stroke: var(--line); fill: none; } svg .tick { fill: var(--quiet); }
svg .one { stroke: var(--one); fill: var(--one); } svg .two { stroke: var(--two); fill: var(--two); }
svg .quiet { stroke: var(--quiet); fill: var(--quiet); } svg .open { fill: none; }
svg text.quiet { stroke: none; fill: var(--quiet); }
svg text.one, svg text.two { stroke: none; }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: what it shows, and the values at its ends.

    Attributes:
        label: what it shows, with the unit.
        low, high: values at the ends; high is above low.
        ticks: values that are written beside it.
    """

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Return where a value is on the axis, 0 at the low end and 1 at the high one."""
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


Draw = Callable[["Frame"], str]


@dataclass(frozen=True, slots=True)
class Frame:
    """Two axes, and where their values are in the picture."""

    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point, in the picture's units."""
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + width * self.x.share(x), HEIGHT - BOTTOM - height * self.y.share(y)


def chart(title: str, x: Axis, y: Axis, *drawn: Draw, names: Sequence[tuple[str, str]] = ()) -> str:
    """Return a diagram; `line` and `dots` draw in it.

    Args:
        title: for those who do not see it.
        x: the axis from left to right.
        y: the axis upwards.
        drawn: what is drawn.
        names: what the colours mean, below it: ``(kind, name)`` for each.
    """
    frame = Frame(x, y)
    body = "".join(draw(frame) for draw in drawn)
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT + LINE * len(names):g}" xmlns="http://www.w3.org/2000/svg"'
    return f'<svg {box} role="img" aria-label="{escape(title)}">{_axes(frame)}{body}{_key(names)}</svg>'


def line(points: Sequence[tuple[float, float]], kind: str = "one", *, is_dashed: bool = False) -> Draw:
    """Return what draws straight lines from point to point."""

    def draw(frame: Frame) -> str:
        coordinates = " ".join(f"{left:.1f},{top:.1f}" for left, top in (frame.at(*point) for point in points))
        dashes = ' stroke-dasharray="4 4"' if is_dashed else ""
        return f'<polyline class="{kind} open" stroke-width="1.6"{dashes} points="{coordinates}"/>'

    return draw


def dots(points: Sequence[tuple[float, float, str]], kind: str = "one") -> Draw:
    """Return what draws a dot at each ``(x, y, what it is)``; the last is shown when the pointer is on the dot."""

    def draw(frame: Frame) -> str:
        drawn = []
        for x, y, said in points:
            left, top = frame.at(x, y)
            centre = f'cx="{left:.1f}" cy="{top:.1f}" r="3.5"'
            drawn.append(f'<circle class="{kind}" {centre}><title>{escape(said)}</title></circle>')
        return "".join(drawn)

    return draw


def _key(names: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f'<text class="{kind}" x="{LEFT:g}" y="{HEIGHT + LINE * (number + 0.75):g}">● {escape(name)}</text>'
        for number, (kind, name) in enumerate(names)
    )


def _axes(frame: Frame) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path class="axis" d="M{LEFT:g},{TOP:g} V{bottom:g} H{right:g}"/>']
    for value in frame.x.ticks:
        left, _ = frame.at(value, frame.y.low)
        parts.append(f'<text class="tick" x="{left:.1f}" y="{bottom + 16:g}" text-anchor="middle">{value:g}</text>')
    for value in frame.y.ticks:
        _, top = frame.at(frame.x.low, value)
        parts.append(f'<path class="axis" d="M{LEFT:g},{top:.1f} H{right:g}" stroke-width=".5"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6:g}" y="{top + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle:g}" y="{HEIGHT - 8:g}" text-anchor="middle">{escape(frame.x.label)}</text>')
    upright = f'transform="translate(13 {(TOP + bottom) / 2:g}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {upright}>{escape(frame.y.label)}</text>")
    return "".join(parts)
