"""Rehearse everything on this machine: pack, travel, every step at a tiny size, report.

python -m tools.gpu.rehearse build/gpu-rehearsal [--only STEP ...]

The luggage is used as on the borrowed machine: by its own copy of the code, in a folder of its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.gpu.pack import ROOT, pack, size_lines
from tools.gpu.plan import Plan
from tools.gpu.report import TABLES, read_results, section


def travel(parts: Path, work: Path, results: Path, steps: list[str]) -> None:
    """Run each part's program, as one command of the borrowed machine each.

    Raises:
        CalledProcessError: one failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # on a busy machine, threads wait for each other
    for part in sorted(parts.iterdir(), key=lambda path: int(path.name)):
        command = [sys.executable, part / "start.py", "--work", work, "--results", results, "--tiny", "--seconds", 900]
        command += ["--only", *steps] if steps else []
        subprocess.run(list(map(str, command)), check=True, cwd=work.parent, env=environment)  # noqa: S603 - our own


def failures(results: Path, steps: list[str]) -> list[str]:
    """Return what did not succeed: parts that failed, steps that are not whole."""
    found = read_results(results)
    lines = []
    for step in Plan.read().steps:
        content = found.get(step.name, {"failed": {}, "complete": False})
        if steps and step.name not in steps:
            continue
        lines += [f"{step.name}, {part}: {reason}" for part, reason in content["failed"].items()]
        lines += [] if content["complete"] else [f"{step.name} is not whole"]
        lines += [f"{step.name} left no {name}" for name in step.writes if not any(results.glob(name))]
    return lines


def main() -> None:
    """Rehearse; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    given = parser.parse_args()
    started = time.monotonic()
    folder = given.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    luggage, results = folder / "luggage", folder / "results"
    options = argparse.Namespace(tiny=True, no_wheels=True, models=None, data=None, questions=0)
    print("\n".join(size_lines(pack(luggage, options), Plan.read().limits)), flush=True)
    travel(luggage, folder / "work", results, given.only)
    found = read_results(results)
    for name in TABLES:
        print(f"\n## {name}\n\n{section(name, found)}", flush=True)
    lines = failures(results, given.only)
    times = {step: sum(part["seconds"] for part in content["parts"].values()) for step, content in found.items()}
    told = json.dumps({step: round(seconds) for step, seconds in times.items()})
    print(f"\nrehearsed {ROOT.name} in {time.monotonic() - started:.0f} s: {told}")
    if lines:
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
