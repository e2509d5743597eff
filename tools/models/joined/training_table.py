"""Measure what `training.py` scored, by the rule of `training.toml`.

python tools/models/joined/training_table.py SETS SCORES

Prints a line for each student: the weight of the first pass that was picked, the macro-mean, each set, and the
difference to the baseline with its standard error, wins, losses and p over all queries. Students that lack a set are
compared on the sets that they have.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from choose import standard_error
from osrerank.evaluation.significance import paired_t_test
from training_states import read_plan, read_set
from values import Floats, Set

BASELINE = "start-e5-small-v2"

Values = Mapping[str, Floats]


def measured(scores: Mapping[str, Floats], sets: Mapping[str, Set], weights: list[float]) -> tuple[float, Values]:
    """Return the best weight by the macro-mean, and nDCG@10 of each set's queries with it."""
    tried = [
        {name: sets[name].values(scores[name] + weight * sets[name].first_pass) for name in scores}
        for weight in weights
    ]
    means = [macro_mean(values) for values in tried]
    best = int(np.argmax(means))
    return weights[best], tried[best]


def macro_mean(values: Values) -> float:
    """Return the mean of the sets' means."""
    return float(np.mean([one.mean() for one in values.values()]))


def main() -> None:
    """Print BM25, the baseline and all others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("scores", type=Path)
    options = parser.parse_args()
    plan = read_plan()
    names, weights = plan["development"], plan["first_pass_weight"]
    sets = {name: Set.of(read_set(options.sets, name, plan)) for name in names}
    bm25 = {name: one.values(one.first_pass) for name, one in sets.items()}
    print("\t".join(["student", "weight", "mean", *names, "difference, its standard error, wins, losses, p", "rule"]))
    print("\t".join(["BM25", "", f"{macro_mean(bm25):.4f}", *(f"{bm25[name].mean():.4f}" for name in names)]))
    files = {file.stem: file for file in sorted(options.scores.glob("*.npz")) if not file.stem.startswith("teacher")}
    loaded = {stem: {name: np.load(file)[name].astype(float) for name in np.load(file)} for stem, file in files.items()}
    for stem in [BASELINE, *(one for one in loaded if one != BASELINE)]:
        scores = loaded[stem]
        weight, values = measured(scores, sets, weights)
        _, base = measured({name: loaded[BASELINE][name] for name in scores}, sets, weights)
        differences = [values[name] - base[name] for name in scores]
        gain = macro_mean(values) - macro_mean(base)
        error = standard_error(differences, np.random.default_rng(plan["rule"]["seed"]))
        every = np.concatenate(differences)
        wins, losses = int((every > 1e-9).sum()), int((every < -1e-9).sum())
        p = paired_t_test(every) if wins + losses else 1.0
        lowest = min(values[name].mean() - bm25[name].mean() for name in scores)
        passes = gain > error and lowest >= plan["rule"]["floor"] and len(scores) == len(names)
        cells = [f"{values[name].mean():.4f}" if name in values else "-" for name in names]
        versus = f"{gain:+.4f}, {error:.4f}, {wins}, {losses}, {p:.2g}"
        print("\t".join([stem, f"{weight:g}", f"{macro_mean(values):.4f}", *cells, versus, "taken" if passes else ""]))


if __name__ == "__main__":
    main()
