"""Begin on the borrowed machine: put this part of the luggage to the others, install its wheels, run what can be run.

python3 PART/start.py --results "$OUT" [--known RESULTS] [--seconds 570] [--only STEP ...]

It needs the standard library alone. What is unpacked stays in --work for the next command, as long as the machine is
held; RESULTS are those of earlier commands, which are not computed again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PYTHON_FOLDERS = ("", "index_loaders", "workers")


def unpack(part: Path, work: Path) -> Path:
    """Copy a part of the luggage beside those that are there already; return the luggage's folder."""
    luggage = work / "luggage"
    if part.resolve() != luggage.resolve():
        shutil.copytree(part, luggage, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return luggage


def install(luggage: Path, site: Path) -> None:
    """Install the wheels beside what the machine's Python has, once."""
    wheels = sorted(map(str, (luggage / "wheels").glob("*.whl")))
    if wheels and not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--no-cache-dir", "--target", str(site), *wheels], check=True)  # noqa: S603 - fixed


def main() -> None:
    """Unpack, install and run."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/osrerank-gpu"))  # noqa: S108 - the machine is ours alone
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--known", type=Path, help="results of earlier commands")
    parser.add_argument("--seconds", type=float, default=570, help="time for this command")
    parser.add_argument("--only", nargs="+", default=[], help="steps; all if not given")
    parser.add_argument("--tiny", action="store_true", help="the rehearsal")
    given = parser.parse_args()
    work = given.work.resolve()
    luggage = unpack(Path(__file__).resolve().parent, work)
    site = work / "site"
    install(luggage, site)
    code = luggage / "code"
    if not code.exists():
        print("the code has not travelled yet: bring the part that has it", flush=True)
        return
    given.results.mkdir(parents=True, exist_ok=True)
    for file in sorted(given.known.glob("*.json")) if given.known and given.known.is_dir() else ():
        if not (given.results / file.name).exists():
            shutil.copy(file, given.results)
    folders = [code / folder for folder in PYTHON_FOLDERS] + [site]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "tools.gpu.run", "--luggage", luggage, "--results", given.results.resolve()]
    command += ["--scratch", work / "scratch", "--seconds", given.seconds - (time.monotonic() - started)]
    command += [*(("--only", *given.only) if given.only else ()), *(("--tiny",) if given.tiny else ())]
    raise SystemExit(subprocess.run(list(map(str, command)), cwd=code, env=environment, check=False).returncode)  # noqa: S603 - our own


if __name__ == "__main__":
    main()
