"""What merging and rounding documents' states costs: nDCG@10 as it comes of each profile, beside exact fp32 records.

python tools/models/joined/profiles.py SETS WORK REFERENCE MODEL... [--only dl19 scifact-test] [--queries 100]

REFERENCE is a model with fp32 graphs, measured with whole records; each MODEL is measured with the profiles that its
joined layers make a difference for. Differences to the reference are tested in pairs over queries (t-test), on each set
and on the queries of all sets together. Logits and records are kept in WORK.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from measure import Profile, compared, kept_logits, overlap, sampled
from osrerank.scoring.model_files import read_card
from table import round_records
from values import Floats, Set

ROUNDED: tuple[Profile, ...] = ("standard", "small")


def profiles_of(model: str) -> tuple[Profile, ...]:
    """Return the profiles of a model that differ; where no layer is joined, only the vector's 8 bits do."""
    return ("exact", *ROUNDED) if read_card(Path(model)).joining.layers else ("exact", "standard")


def main() -> None:
    """Print a line for each set, model and profile, then the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("reference")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--only", nargs="+", help="names of sets; all that are there if not given")
    parser.add_argument("--queries", type=int, default=0, help="at most so many of each set, drawn with seed 1")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.only or sorted(file.stem for file in options.sets.glob("*.json"))
    whole: dict[tuple[str, Profile], list[tuple[Floats, Floats]]] = {}
    for name in names:
        content = sampled(json.loads((options.sets / f"{name}.json").read_text("utf-8")), options.queries)
        one = Set.of(content)
        logits, weight = kept_logits(options.reference, name, content, options.work, "exact")
        scores = logits + weight * one.first_pass
        expected = one.values(scores)
        print(f"{name}: {len(expected)} queries, {options.reference} exact {expected.mean():.4f}", flush=True)
        for model in options.models:
            every = [text for parts in content["texts"].values() for text in parts]
            for profile in profiles_of(model):
                if profile != "exact":
                    round_records(model, every, profile, options.work)
                logits, weight = kept_logits(model, name, content, options.work, profile)
                found = logits + weight * one.first_pass
                values = one.values(found)
                whole.setdefault((model, profile), []).append((values, expected))
                shared = overlap(found, scores, one.bounds)
                print(f"  {model} {profile}: {values.mean():.4f}, {compared(values, expected)}", end="")
                print(f", {shared:.3f} of the first ten shared", flush=True)
    for (model, profile), pairs in whole.items():
        differences = [float((values - expected).mean()) for values, expected in pairs]
        values, expected = (np.concatenate(part) for part in zip(*pairs, strict=True))
        print(
            f"{model} {profile}: mean of {len(names)} sets {np.mean(differences):+.4f}, least {min(differences):+.4f}"
        )
        print(f"  all {len(values)} queries: {compared(values, expected)}")


if __name__ == "__main__":
    main()
