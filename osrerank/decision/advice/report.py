"""The advice as an HTML page in one file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from osrerank.decision.advice.advise import Advice
from osrerank.decision.advice.choose import Scores, Setting, order_of
from osrerank.decision.advice.sample import Found
from osrerank.decision.advice.tried import Tried
from osrerank.decision.advice.words import examples, headline, lines
from osrerank.decision.charts import Axis, Draw, chart, dots, line
from osrerank.decision.page import figure, figures, heading, page, paragraph, rows
from osrerank.types import Qrels

KINDS = ("one", "two", "three", "four")
TONES = {"helps": "verdict good", "hurts": "verdict bad", "undecided": "verdict"}
HITS = 5
SNIPPET = 140
TICKS = 5


def report(advice: Advice, qrels: Qrels | None, settings: str) -> str:
    """Return the page.

    Args:
        advice: what was found out.
        qrels: judgments, to mark relevant hits.
        settings: the content of the settings file that goes with it.
    """
    tone = TONES[advice.verdict.outcome] if advice.verdict else "verdict"
    title, *said = lines(advice)
    parts = [heading(title, 1), paragraph(_question(advice), tone), *(paragraph(one.strip()) for one in said)]
    if advice.before is not None:
        parts += [heading("Quality and time"), figures(*_plots(advice)), heading("Settings"), _settings(advice)]
    parts += [heading("Cost of a search"), _costs(advice)]
    if advice.before is not None and qrels is not None:
        parts += _examples(advice, qrels)
    parts += [heading("Settings file"), f"<pre>{escape(settings)}</pre>"]
    return page(headline(advice), *parts)


def _question(advice: Advice) -> str:
    if advice.verdict is None:
        return "What can be known: how much the order changes, whether models agree, and what it costs."
    sayings = {
        "helps": "Yes: rerank=True as it is now is better than the first pass.",
        "hurts": "No: rerank=True as it is now is worse than the first pass.",
        "undecided": "Open: these queries do not tell rerank=True as it is now from the first pass.",
    }
    if advice.choice is None:
        return f"{sayings[advice.verdict.outcome]} No setting is fast enough."
    also = {"helps": "helps", "hurts": "hurts", "undecided": "is undecided"}[advice.choice.verdict.outcome]
    return f"{sayings[advice.verdict.outcome]} The best setting that was found {also}."


def _plots(advice: Advice) -> list[str]:
    """Return the diagrams: quality against time, against the blend, and the differences of the queries."""
    return [
        figure(f"{advice.wanted.measure} by time and depth", _by_time(advice)),
        figure(f"{advice.wanted.measure} by weight of the first pass, depth {advice.best.depth}", _by_weight(advice)),
        figure("Differences of the queries, best setting", _by_query(advice)),
    ]


def _by_time(advice: Advice) -> str:
    """Return the best mean of each depth against the 95th percentile, a line for each model and passages setting."""
    curves = {str(one): _curve(advice, one) for one in advice.tried}
    curves = {name: points for name, points in curves.items() if points}
    before = _mean(advice)
    values = [y for points in curves.values() for _, y, _ in points] + [before]
    times = [x for points in curves.values() for x, _, _ in points] + [advice.tried[0].costs[0].p95_ms]
    if advice.wanted.p95_ms:
        times.append(advice.wanted.p95_ms)
    level = "first pass (dashed), limit (upright)" if advice.wanted.p95_ms else "first pass (dashed)"
    names = [*zip(KINDS * len(curves), curves, strict=False), ("quiet", level)]
    x = _axis("95th percentile of a search (ms)", 0, max(times) * 1.05)
    y = _axis(advice.wanted.measure, *_span(values))
    drawn: list[Draw] = [line([(x.low, before), (x.high, before)], "quiet", is_dashed=True)]
    if advice.wanted.p95_ms:
        drawn.append(line([(advice.wanted.p95_ms, y.low), (advice.wanted.p95_ms, y.high)], "quiet"))
    for kind, points in zip(KINDS * len(curves), curves.values(), strict=False):
        drawn += [line([point[:2] for point in points], kind), dots(points, kind)]
    return chart("Quality by time", x, y, *drawn, names=names)


def _curve(advice: Advice, tried: Tried) -> list[tuple[float, float, str]]:
    best: dict[int, tuple[float, Setting]] = {}
    for setting, values in advice.values.items():
        if setting.scores == tried.scores:
            here = float(values.mean()), setting
            best[setting.depth] = max(best.get(setting.depth, here), here, key=_first)
    return [
        (tried.costs[depth].p95_ms, mean, f"{setting}: {mean:.4f}, {tried.costs[depth].p95_ms:.0f} ms")
        for depth, (mean, setting) in sorted(best.items())
        if depth in tried.costs
    ]


def _first(pair: tuple[float, Setting]) -> float:
    return pair[0]


def _by_weight(advice: Advice) -> str:
    """Return the mean against the weight of the first pass, at the best setting's depth."""
    best = replace(advice.best, duo_depth=0, sentences=None)
    points = sorted(
        (setting.weight, float(values.mean()), f"{setting}: {values.mean():.4f}")
        for setting, values in advice.values.items()
        if (setting.scores, setting.depth) == (best.scores, best.depth) and setting.blend in ("replace", "linear")
    )
    before = _mean(advice)
    x = _axis("Weight of the first pass (logits)", 0, max(1.0, *(point[0] for point in points)) * 1.05)
    y = _axis(advice.wanted.measure, *_span([before, *(point[1] for point in points)]))
    level = line([(x.low, before), (x.high, before)], "quiet", is_dashed=True)
    drawn = [level, line([point[:2] for point in points]), dots(points)]
    return chart("Quality by weight", x, y, *drawn, names=[("quiet", "first pass (dashed)")])


def _by_query(advice: Advice) -> str:
    """Return the sorted differences to the first pass."""
    assert advice.before is not None  # there are judgments
    differences = sorted((advice.values[advice.best] - advice.before).tolist(), reverse=True)
    points = [(float(place), value) for place, value in enumerate(differences, start=1)]
    reach = max(0.05, *(abs(value) for value in differences))
    x, y = _axis("Queries, sorted", 0, len(points)), _axis("Difference", -reach, reach)
    drawn = [line([(0, 0), (x.high, 0)], "quiet")]
    for kind, sign in (("one", 1), ("quiet", 0), ("two", -1)):
        here = [(*point, f"{point[1]:+.4f}") for point in points if (point[1] > 0) - (point[1] < 0) == sign]
        drawn.append(dots(here, kind, 2))
    return chart("Differences of the queries", x, y, *drawn)


def _axis(label: str, low: float, high: float) -> Axis:
    """Return an axis with round ticks."""
    step = 10 ** math.floor(math.log10((high - low) / TICKS))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= TICKS + 1)
    start = math.ceil(low / step)
    ticks = tuple(round(step * place, 6) for place in range(start, math.floor(high / step) + 1))
    return Axis(label, low, high, ticks)


def _span(values: Sequence[float]) -> tuple[float, float]:
    room = max(0.02, (max(values) - min(values)) * 0.15)
    return max(0.0, min(values) - room), min(1.0, max(values) + room)


def _mean(advice: Advice) -> float:
    return float(advice.before.mean()) if advice.before is not None else 0.0


def _settings(advice: Advice) -> str:
    """Return the table of the best blend of each depth, and of what is set now."""
    best: dict[tuple[Scores, int], tuple[float, Setting]] = {}
    for setting, values in advice.values.items():
        place = setting.scores, setting.depth
        here = float(values.mean()), setting
        best[place] = max(best.get(place, here), here, key=_first)
    chosen = dict.fromkeys([advice.best, advice.current, *(setting for _, setting in best.values())])
    names = {advice.current: " (now)", advice.best: " (best)"}
    means = {one: float(advice.values[one].mean()) for one in chosen}
    before = _mean(advice)
    cells = [[f"{one}{names.get(one, '')}", f"{mean:.4f}", f"{mean - before:+.4f}"] for one, mean in means.items()]
    columns = ("setting", f"{advice.wanted.measure} of the sample", "to the first pass")
    note = "The best of many settings looks better on its sample than it is; the promise above is of held-out queries."
    return rows(columns, cells) + paragraph(note, "quiet")


def _costs(advice: Advice) -> str:
    rate = advice.wanted.searches_per_s
    cells = [
        [
            "first pass alone" if depth == 0 else f"{tried}, depth {depth}",
            f"{cost.p50_ms:.1f}",
            f"{cost.p95_ms:.1f}",
            f"{cost.cores(rate):.2f}",
            str(cost.searches),
        ]
        for place, tried in enumerate(advice.tried)
        for depth, cost in sorted(tried.costs.items())
        if depth or place == 0
    ]
    columns = ("", "p50 ms", "p95 ms", f"cores for {rate:g} searches/s", "timed")
    note = "One search at a time, without the score cache, with documents' states where the model has them."
    return rows(columns, cells) + paragraph(note, "quiet")


def _examples(advice: Advice, qrels: Qrels) -> list[str]:
    parts = []
    for title, places in zip(("Gain most", "Lose most"), examples(advice), strict=True):
        parts.append(heading(f"Queries that {title.lower()}"))
        found = advice.tried_with(advice.best).found
        parts += [_example(advice, found[place], place, qrels) for place in places] or [paragraph("None.")]
    return parts


def _example(advice: Advice, found: Found, place: int, qrels: Qrels) -> str:
    assert advice.before is not None  # there are judgments
    before, after = advice.before[place], advice.values[advice.best][place]
    judged = qrels.judgments.get(found.query.query_id, {})
    sides = [
        _side("First pass", found, found.first_pass(), judged),
        _side("Reranked", found, order_of(found, advice.best), judged),
    ]
    summary = f"<summary>{escape(found.query.text)} ({before:.2f} → {after:.2f})</summary>"
    return f'<details open>{summary}<div class="pair">{"".join(sides)}</div></details>'


def _side(title: str, found: Found, doc_ids: Sequence[str], judged: Mapping[str, int]) -> str:
    items = []
    for doc_id in doc_ids[:HITS]:
        text = escape(f"{doc_id}: {found.texts[doc_id][:SNIPPET]}")
        items.append(f'<li class="good">✓ {text}</li>' if judged.get(doc_id, 0) > 0 else f"<li>{text}</li>")
    return f"<div><strong>{escape(title)}</strong><ol>{''.join(items)}</ol></div>"
