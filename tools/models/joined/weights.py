"""Print nDCG@10 of a model by the weight of BM25, from the logits that `measure.py` kept: to choose the weight by.

python tools/models/joined/weights.py SETS LOGITS MODEL [--only dl21 squad] [--queries 100]

A weight is in the unit of a cosine, as `protocol.toml` has it, and counts times BM25's score over the query's best.
"""

import argparse
import json
import tomllib
from pathlib import Path

import numpy as np

from measure import kept_logits, sampled
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import read_card
from values import Set

PROTOCOL = Path(__file__).parent / "protocol.toml"


def main() -> None:
    """Print a line for each weight: the mean, then each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("model")
    parser.add_argument("--only", nargs="+", help="names of sets; all that are there if not given")
    parser.add_argument("--queries", type=int, default=0, help="at most so many of each set, drawn with seed 1")
    options = parser.parse_args()
    names = options.only or sorted(file.stem for file in options.sets.glob("*.json"))
    scale = read_card(locate(options.model)).calibration.scale
    weights = tomllib.loads(PROTOCOL.read_text("utf-8"))["grid"]["first_pass_weight"]
    found: dict[float, list[float]] = {weight: [] for weight in weights}
    for name in names:
        content = sampled(json.loads((options.sets / f"{name}.json").read_text("utf-8")), options.queries)
        one = Set.of(content)
        logits, _ = kept_logits(options.model, name, content, options.logits)
        for weight in weights:
            found[weight].append(float(one.values(logits + weight * scale * one.first_pass).mean()))
    print("weight", "mean", *names, sep="\t")
    for weight, values in found.items():
        print(weight, *(f"{value:.4f}" for value in (float(np.mean(values)), *values)), sep="\t")


if __name__ == "__main__":
    main()
