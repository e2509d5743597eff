"""``python -m tests.chaos --seed 32``: ten thousand searches in motion, and a table of what came of them."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Plan, perform


def main() -> int:
    """Run, print the summary, and return 1 if anything was lost, doubled or wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=32)
    parser.add_argument("--searches", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--log", type=Path, help="outcomes, a JSON line each")
    parser.add_argument("--folder", type=Path, help="for the files of the servers")
    arguments = parser.parse_args()
    plan = Plan(arguments.seed, arguments.searches, arguments.workers)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = arguments.folder or Path(temporary)
        summary = perform(plan, folder, log=arguments.log or Path(temporary) / "log.jsonl")
    print(json.dumps(summary, indent=1))  # noqa: T201
    bad = ("lost", "doubled", "unmarked_or_wrong", "failed_without_a_fault_of_opensearch")
    return int(any(summary[name] for name in bad))


if __name__ == "__main__":
    sys.exit(main())
