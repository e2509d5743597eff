"""Measure what feedback costs a warm search of depth 100: medians of interleaved rounds, on the embedded engine.

python -m tools.models.feedback.speed SETS/squad.json [--queries 40] [--rounds 25]

The set is one that tools/models/joined/sets.py writes.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from osrerank import connect
from osrerank.settings import DEFAULT_MODEL

DEPTH = 100
WAYS = {"without": False, "with": True}


def main() -> None:
    """Print the median milliseconds of a search with and without feedback, and of the difference of each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    content = json.loads(options.set.read_text("utf-8"))
    queries = list(content["queries"].values())[: options.queries]
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder, connect(f"embedded:{folder}", model=options.model) as client:
        for doc_id, texts in content["texts"].items():
            client.index(index="set", id=doc_id, body={"text": " ".join(texts)})
        client.indices.refresh(index="set")
        for number in range(options.rounds + 1):
            for query in queries:
                for name in sorted(WAYS, reverse=bool(number % 2)):
                    began = time.perf_counter()
                    asked = {"depth": DEPTH, "feedback": WAYS[name], "deadline_ms": None}
                    client.search(query, index="set", rerank=asked)
                    if number:  # the first round encodes
                        took[name].append((time.perf_counter() - began) * 1000)
    added = np.median(np.subtract(took["with"], took["without"]))
    medians = ", ".join(f"{name} {np.median(one):.2f}" for name, one in took.items())
    print(f"{len(queries)} queries, {options.rounds} rounds, ms: {medians}; median of the differences {added:+.3f}")


if __name__ == "__main__":
    main()
