"""Write what came back from a GPU into the documentation: tables from the JSON alone, between markers.

python -m tools.gpu.report RESULTS                      # docs/gpu.md and docs/performance.md, results of a GPU alone
python -m tools.gpu.report RESULTS --print              # to the screen, a rehearsal's too
python -m tools.gpu.report RESULTS --model START OUTPUT # the trained model's directory

A step without results says so. Figures of a rehearsal, or of a machine without a GPU, are refused.
"""

import argparse
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.gpu.luggage import join_changed
from tools.gpu.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "docs/gpu.md": ("parity", "training", "states", "worker", "kernels"),
    "docs/performance.md": ("speed",),
}
"""Sections of each page."""
FIXED = (
    "device",
    "driver",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "onnxruntime",
    "numpy",
    "date",
    "seconds",
)
NOTHING = "Not measured yet: no GPU was there."
Part = Mapping[str, Any]
Rows = Iterable[Sequence[Any]]


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of each step's file that is there."""
    files = {step.name: folder / f"{step.name}.json" for step in Plan.read().steps}
    return {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()}


def check(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse results that are no measurements of a GPU.

    Raises:
        ValueError: a step was rehearsed, or ran without a GPU.
    """
    for name, content in results.items():
        if content["tiny"]:
            raise ValueError(f"{name}.json is a rehearsal's; its figures are nobody's: use --print")
        for part, found in content["parts"].items():
            if found["driver"] == "none":
                raise ValueError(f"{name}.json, {part}: it ran on {found['device']}, which is no GPU: use --print")


def section(name: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a section's Markdown."""
    step = "speed" if name == "kernels" else name
    if step not in results or not results[step]["parts"]:
        return NOTHING
    content = results[step]
    parts: dict[str, Part] = content["parts"]
    lines = [_machines(parts.values()), "", *TABLES[name](parts)]
    failed = [f"- {part}: {reason}" for part, reason in content["failed"].items()]
    return "\n".join([*lines, *(["", "Failed:", "", *failed] if failed and name != "kernels" else [])])


def _machines(parts: Iterable[Part]) -> str:
    """Return the device, the versions and the dates of parts, each machine once."""
    told = {", ".join(f"{name} {part[name]}" for name in FIXED if name in part and name != "seconds") for part in parts}
    return "; ".join(sorted(told)) + "."


def _table(heads: Sequence[str], rows: Rows) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return [*lines, *(f"| {' | '.join(map(_shown, row))} |" for row in rows)]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def parity(parts: Mapping[str, Part]) -> list[str]:
    """Return the table of differences, and what became of the other checks."""
    fields = ("difference", "first ten", "alone or together")
    rows = [
        (name, way, found["spread"], *(row.get(field) for field in fields))
        for name, found in parts.items()
        for way, row in found.get("rows", {}).items()
    ]
    heads = ("model", "way", "spread of scores", "largest difference", "same first ten", "alone or together")
    return [*_table(heads, rows), "", *_others(parts)]


def _others(parts: Mapping[str, Part]) -> Iterator[str]:
    """Yield a line for each part that has no rows."""
    for name, found in parts.items():
        if "rows" not in found:
            told = ", ".join(f"{field} {_shown(value)}" for field, value in found.items() if field not in FIXED)
            yield f"- {name}: {told}"


def speed(parts: Mapping[str, Part]) -> list[str]:
    """Return the table of ways, and how many times the peer ours is."""
    fields = ("pairs/s", "tokens/s", "of the measured peak", "of the nominal peak", "MiB")
    cells = {name: found for name, found in parts.items() if not name.startswith("kernels") and "rows" in found}
    rows = [
        (name, way, *(row.get(field) for field in fields))
        for name, found in cells.items()
        for way, row in found["rows"].items()
    ]
    times = [(name, *_times(found["rows"])) for name, found in cells.items()]
    others = {name: found for name, found in parts.items() if not name.startswith("kernels") and "rows" not in found}
    return [
        *_table(("model, tokens", "best of ours from texts", "best of sentence-transformers", "times"), times),
        "",
        *_table(("model, tokens", "way", *fields), rows),
        "",
        *_others(others),
    ]


def _times(rows: Mapping[str, Mapping[str, Any]]) -> tuple[Any, Any, Any]:
    """Return the best pairs a second of ours from texts, of sentence-transformers, and their ratio."""

    def best(start: str) -> float | None:
        return max((row["pairs/s"] for way, row in rows.items() if way.startswith(start)), default=None)

    ours, theirs = best("osrerank"), best("sentence-transformers")
    return ours, theirs, ours / theirs if ours and theirs else None


def kernels(parts: Mapping[str, Part]) -> list[str]:
    """Return the kernels by time."""
    lines: list[str] = []
    for name, found in parts.items():
        if name.startswith("kernels"):
            rows = [(f"`{kernel}`", row["ms"], row["share"]) for kernel, row in found["rows"].items()]
            lines += [f"{name}: {found['wall ms']} ms, {found['kernels ms']} ms of them in kernels", ""]
            lines += _table(("kernel", "ms", "share"), rows)
    return lines or [NOTHING]


def training(parts: Mapping[str, Part]) -> list[str]:
    """Return the table of trainings, their losses and measures."""
    trained = {name: found for name, found in parts.items() if "loss" in found}
    fields = ("steps", "seconds", "sequences/s", "MiB", "hours to 400,000 steps of 32")
    rows = [
        (name, *(found.get(field) for field in fields), *(found["loss"][at] for at in (0, -1)))
        for name, found in trained.items()
    ]
    lines = _table(("training", *fields, "first loss", "last loss"), rows)
    measures = [
        f"- {name}: {', '.join([*found['progress'][1:2], str(found['measures'])])}"
        for name, found in trained.items()
        if found["measures"]
    ]
    return [*lines, "", *measures, *_others({name: found for name, found in parts.items() if "loss" not in found})]


def _plain(*heads: str) -> Any:
    """Return what makes a table of a step whose parts are rows."""

    def made(parts: Mapping[str, Part]) -> list[str]:
        lines = _table(
            ("what", *heads), ((name, *(found.get(head) for head in heads)) for name, found in parts.items())
        )
        hours = [f"- {name}: hours for {found['hours']}" for name, found in parts.items() if "hours" in found]
        return [*lines, *(["", *hours] if hours else [])]

    return made


TABLES = {
    "parity": parity,
    "speed": speed,
    "kernels": kernels,
    "training": training,
    "states": _plain("documents", "documents/s", "bytes a record", "MiB"),
    "worker": _plain("searches/s", "p50 ms", "p95 ms", "p99 ms", "pairs/s", "mean tokens", "GPU busy"),
}


def with_section(page: str, name: str, content: str) -> str:
    """Return a page with a section's content between its markers.

    Raises:
        ValueError: the page has no such markers.
    """
    begin, end = f"<!-- gpu: {name} -->", f"<!-- end of gpu: {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no lines {begin} and {end}; add them where the table belongs")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", page)


def write_model(results: Path, start: Path, output: Path) -> None:
    """Write the trained model: the start's directory with the weights and the card that came back."""
    card = read_results(results)["training"]["parts"]["mono"]["card"]
    output.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(start / name, output / name)
    (output / "osrerank.json").write_text(f"{json.dumps(card, indent=2)}\n", encoding="utf-8")
    join_changed(start / "model.safetensors", sorted(results.glob("mono-*.safetensors")), output / "model.safetensors")


def main() -> None:
    """Write the pages, or print the sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--print", action="store_true", dest="shown")
    parser.add_argument("--model", type=Path, nargs=2, metavar=("START", "OUTPUT"))
    given = parser.parse_args()
    if given.model:
        write_model(given.results, *given.model)
        return
    results = read_results(given.results)
    if not given.shown:
        check(results)
    for page, names in PAGES.items():
        text = (ROOT / page).read_text("utf-8")
        for name in names:
            content = section(name, results)
            text = with_section(text, name, content)
            if given.shown:
                print(f"## {name}\n\n{content}\n")
        if not given.shown:
            (ROOT / page).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
