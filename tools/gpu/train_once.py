"""One training in a process of its own, so that it can be killed, and has the GPU's memory to itself.

python -m tools.gpu.train_once REQUEST.json FOUND.json

REQUEST is ``{"source", "output", "recipe", "kind", "examples", "development", "minutes", "save_every_s"}``; FOUND gets
the seconds, the speed over the last half of the steps, and the most memory.
"""

import functools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from osrerank.training import fit, loop
from osrerank.training.curve import CURVE_FILE, read_curve
from osrerank.training.examples.sources import open_source
from osrerank.training.fit import Request
from osrerank.training.recipes import Recipe
from tools.gpu.measure import peak_memory

POINTS = 40
"""Of a loss curve that comes back: each the mean of as many steps."""


class Watch:
    """Keeps the lines of progress, and notes how many steps a curve has at which time.

    Args:
        curve: file to which the training adds a line a step.
    """

    def __init__(self, curve: Path) -> None:
        self.lines: list[str] = []
        self._curve = curve
        self._seen: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def steps_per_s(self) -> float | None:
        """Steps a second over the last half of them, so that loading and warming up do not count; None of too few."""
        if not self._seen:
            return None
        (last_s, last), middle = self._seen[-1], self._seen[-1][1] / 2
        half_s, half = next(one for one in self._seen if one[1] >= middle)
        return (last - half) / (last_s - half_s) if last > half else None

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            steps = self._curve.read_bytes().count(b"\n") - 1 if self._curve.exists() else 0
            if steps > (self._seen[-1][1] if self._seen else 0):
                self._seen.append((time.monotonic(), steps))


def request_of(content: dict[str, Any], report: Watch) -> Request:
    """Return the training as `osrerank.training.fit` takes it."""
    development = content.get("development")
    return Request(
        source=Path(content["source"]),
        output=Path(content["output"]),
        recipe=Recipe.of(content["recipe"], "modern"),
        data=[open_source({"examples": content["examples"]})],
        development=open_source({"examples": development}) if development else None,
        max_minutes=content["minutes"],
        report=report,
    )


def curve_of(folder: Path) -> tuple[int, list[float], list[list[float]]]:
    """Return the steps that are done, the loss in parts of them, and each measure with its step."""
    rows = read_curve(folder / CURVE_FILE) if (folder / CURVE_FILE).exists() else []
    size = max(1, len(rows) // POINTS)
    losses = [float(row["loss"]) for row in rows]
    points = [sum(losses[at : at + size]) / len(losses[at : at + size]) for at in range(0, len(losses), size)]
    measures = [[int(row["step"]), float(row["measure"])] for row in rows if row.get("measure")]
    return len(rows), [round(point, 5) for point in points], measures


def main() -> None:
    """Train, and write what was found."""
    content = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    if "save_every_s" in content:  # no option of the command has it: only tests kill what has just begun
        often = functools.partial(loop.Plan, save_every_s=content["save_every_s"])
        setattr(fit, "Plan", often)  # noqa: B010 - the module does not export it
    report = Watch(Path(f"{content['output']}.training") / CURVE_FILE)
    request = request_of(content, report)
    with peak_memory() as memory, report:
        started = time.monotonic()
        made = fit.train(request, content.get("kind", "mono"))
        taken = time.monotonic() - started
        most = memory()
    steps, losses, measures = curve_of(request.output if made else request.folder)
    rate = report.steps_per_s or steps / taken
    found: dict[str, Any] = {
        "finished": made is not None,
        "seconds": round(taken, 1),
        "steps": steps,
        "MiB": most,
        "loss": losses,
    }
    found |= {"sequences/s": round(rate * request.recipe.batch, 2)}
    found |= {"measures": measures, "progress": report.lines[:3] + report.lines[-3:]}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
