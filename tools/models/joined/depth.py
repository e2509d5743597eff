"""How deep to rerank: nDCG@10 as it comes at several depths, on sets that `sets.py --depth 1000` wrote.

python tools/models/joined/depth.py SETS WORK osrerank/mono [--only squad nfcorpus] [--queries 100]

Candidates below a depth stay where the first pass has them. Each depth is compared with the first: wins, losses, paired
t-test. Logits and records are kept in WORK, as `measure.py` keeps them.
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from measure import compared, kept_logits, sampled
from values import Floats, Set

DEPTHS = (100, 200, 500, 1000)


def cut_off(scores: Floats, one: Set, depth: int) -> Floats:
    """Return scores by which candidates below a depth stay below those above it, in the order of the first pass."""
    found = scores.copy()
    for begin, end in pairwise(one.bounds):
        below = range(begin + depth, end)
        least = scores[begin : begin + depth].min(initial=np.inf) if end > begin else 0.0
        found[begin + depth : end] = [least - 1 - place for place in range(len(below))]
    return found


def main() -> None:
    """Print a line for each set and depth, then the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("model")
    parser.add_argument("--only", nargs="+", help="names of sets; all that are there if not given")
    parser.add_argument("--queries", type=int, default=0, help="at most so many of each set, drawn with seed 1")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.only or sorted(file.stem for file in options.sets.glob("*.json"))
    means: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for name in names:
        content = sampled(json.loads((options.sets / f"{name}.json").read_text("utf-8")), options.queries)
        one = Set.of(content)
        logits, weight = kept_logits(options.model, name, content, options.work)
        scores = logits + weight * one.first_pass
        print(f"{name}: {len(one.candidates)} queries, BM25 {one.values(one.first_pass).mean():.4f}", flush=True)
        first: Floats | None = None
        for depth in DEPTHS:
            values = one.values(cut_off(scores, one, depth))
            means[depth].append(float(values.mean()))
            versus = "" if first is None else f", to {DEPTHS[0]} {compared(values, first)}"
            first = values if first is None else first
            print(f"  depth {depth}: {values.mean():.4f}{versus}", flush=True)
    for depth, found in means.items():
        print(f"mean of {len(names)} sets, depth {depth}: {np.mean(found):.4f}")


if __name__ == "__main__":
    main()
