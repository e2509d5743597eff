"""One step in a process of its own: its parts in turn, the results written after each.

python -m tools.gpu.task STEP --luggage LUGGAGE --results RESULTS --scratch SCRATCH --seconds 500 [--tiny]

A part that is among the results is not computed again; one that failed is tried again. What fails is written down with
its reason, and the next part begins: an error never costs what is measured already.
"""

import argparse
import importlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Found = Mapping[str, Any]
UNFINISHED = 3
"""Exit status where time ended before the parts did."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a step is given.

    Attributes:
        luggage: what `tools.gpu.pack` made, as it was put together on this machine.
        results: where what comes back is written.
        scratch: for files that do not come back.
        tiny: whether this is the rehearsal: the same code on little.
        until: end of the time for this step, of ``time.monotonic``.
    """

    luggage: Path
    results: Path
    scratch: Path
    tiny: bool
    until: float

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    def choose(self, whole: Any, tiny: Any) -> Any:
        """Return the first value, in a rehearsal the second."""
        return tiny if self.tiny else whole


class Part(NamedTuple):
    """A measurement of its own.

    Attributes:
        name: unique within the step.
        seconds: expected on the GPU; it is not begun where less is left.
        measure: returns what was found, as JSON has it.
    """

    name: str
    seconds: float
    measure: Callable[[], Found]


class Results:
    """A step's JSON file, whole after each change.

    Args:
        file: where.
        fixed: what describes the step: its name, and whether it was the rehearsal.
    """

    def __init__(self, file: Path, fixed: Found) -> None:
        self._file = file
        known = json.loads(file.read_text("utf-8")) if file.exists() else {}
        same = all(known.get(name) == value for name, value in fixed.items())
        self.content: dict[str, Any] = (
            known if same and known else {**fixed, "complete": False, "parts": {}, "failed": {}}
        )

    @property
    def done(self) -> set[str]:
        """Names of the parts that are measured."""
        return set(self.content["parts"])

    def add(self, name: str, found: Found) -> None:
        """Add a part's results."""
        self.content["failed"].pop(name, None)
        self.content["parts"][name] = found
        self._write()

    def fail(self, name: str, reason: str) -> None:
        """Add why a part has none."""
        self.content["failed"][name] = reason
        self._write()

    def finish(self) -> None:
        """Note that no part is left."""
        self.content["complete"] = True
        self._write()

    def _write(self) -> None:
        unfinished = self._file.with_name(f"{self._file.name}.unfinished")
        unfinished.write_text(f"{json.dumps(self.content, indent=1)}\n", encoding="utf-8")
        unfinished.replace(self._file)


def run_parts(parts: Iterator[Part], task: Task, results: Results, describe: Callable[[], Found]) -> bool:
    """Measure what is not measured yet; return whether no part is left.

    Args:
        parts: in order.
        task: how much time there is.
        results: of the step.
        describe: returns the device and the versions, which are kept with each part.
    """
    whole = True
    for part in parts:
        if part.name in results.done:
            continue
        if not task.tiny and task.left_s < part.seconds:
            print(f"{part.name}: {part.seconds:.0f} s expected, {task.left_s:.0f} s left: not begun", flush=True)
            whole = False
            continue
        started = time.monotonic()
        try:
            found = part.measure()
        except Exception as error:  # noqa: BLE001 - the next part may succeed
            traceback.print_exc()
            results.fail(part.name, f"{type(error).__name__}: {str(error)[:500]}")
            continue
        seconds = round(time.monotonic() - started, 1)
        results.add(part.name, {**describe(), "seconds": seconds, **found})
        print(f"{part.name}: {seconds} s: {json.dumps(found)[:400]}", flush=True)
    if whole:
        results.finish()
    return whole


def main() -> None:
    """Run a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step")
    for name in ("--luggage", "--results", "--scratch"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    from tools.gpu.measure import machine  # noqa: PLC0415 - imports torch, which the runner does without

    given.scratch.mkdir(parents=True, exist_ok=True)
    task = Task(given.luggage, given.results, given.scratch, given.tiny, time.monotonic() + given.seconds)
    results = Results(given.results / f"{given.step}.json", {"step": given.step, "tiny": given.tiny})
    module = importlib.import_module(f"tools.gpu.steps.{given.step}")
    if not run_parts(module.parts(task), task, results, machine):
        raise SystemExit(UNFINISHED)


if __name__ == "__main__":
    main()
