"""Run the steps of ``steps.toml`` that are not done, in their order, until the time for this command is over.

python -m tools.gpu.run --luggage LUGGAGE --results RESULTS --scratch SCRATCH --seconds 570 [--only STEP ...] [--tiny]

Each step is a process of its own (`tools.gpu.task`), which writes its JSON after each part. So neither a crash nor the
end of the time costs what is measured already, and the same command goes on where the last one stopped.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.gpu.plan import Plan, Step

RESERVE_S = 15.0
"""Kept for writing the last results and for ending a step that does not end by itself."""
FEWEST_S = 30.0
"""Less is not enough to load a model and measure something of it."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where luggage is read, results are written, and everything else goes."""

    luggage: Path
    results: Path
    scratch: Path


def reason_to_skip(step: Step, folders: Folders, *, left_s: float, tiny: bool) -> str:
    """Return why a step is not run now, or nothing.

    Args:
        step: the step.
        folders: where its needs and its results are.
        left_s: seconds left for this command.
        tiny: whether this is the rehearsal, whose results count for no other run.
    """
    if is_complete(folders.results / f"{step.name}.json", tiny=tiny):
        return "done"
    missing = [name for name in step.needs if not (folders.luggage / name).exists()]
    if missing:
        return f"needs {', '.join(missing)}, which has not travelled"
    if left_s < FEWEST_S:
        return f"{left_s:.0f} s are left"
    return ""


def is_complete(file: Path, *, tiny: bool) -> bool:
    """Return whether a step's results are whole, of the wanted size, and none of its parts failed."""
    if not file.exists():
        return False
    content = json.loads(file.read_text("utf-8"))
    return bool(content["complete"]) and content["tiny"] == tiny and not content["failed"]


def run_step(step: Step, folders: Folders, *, seconds: float, tiny: bool) -> str:
    """Run a step, ended by force at the end of its time; return how it ended."""
    where = ["--luggage", folders.luggage, "--results", folders.results, "--scratch", folders.scratch / step.name]
    command = [sys.executable, "-m", "tools.gpu.task", step.name, *where, "--seconds", seconds]
    command += ["--tiny"] if tiny else []
    started = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), start_new_session=True)  # noqa: S603 - our own
    try:
        ended = {0: "done", 3: "stopped in time"}.get(process.wait(seconds + RESERVE_S / 2), "failed")
    except subprocess.TimeoutExpired:
        ended = "ended by force"
    finally:
        _end(process)
    return f"{ended} after {time.monotonic() - started:.0f} s, {step.seconds} s expected"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the processes of a step's session that are left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def run(plan: Plan, folders: Folders, *, seconds: float, only: Sequence[str] = (), tiny: bool = False) -> list[str]:
    """Run what can be run; return a line for each step, which says what became of it."""
    until = time.monotonic() + seconds - RESERVE_S
    folders.results.mkdir(parents=True, exist_ok=True)
    lines = []
    for step in plan.steps:
        if only and step.name not in only:
            continue
        left = until - time.monotonic()
        line = reason_to_skip(step, folders, left_s=left, tiny=tiny)
        line = line or run_step(step, folders, seconds=left, tiny=tiny)
        lines.append(f"{step.name}: {line}")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Run, and end with a line for each step: the end of the output is what comes back for sure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--luggage", "--results", "--scratch"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    folders = Folders(given.luggage, given.results, given.scratch)
    lines = run(Plan.read(), folders, seconds=given.seconds, only=given.only, tiny=given.tiny)
    print("\n".join(["", *lines]), flush=True)


if __name__ == "__main__":
    main()
