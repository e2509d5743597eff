"""Measure what `training.py` scored, by the rule of `training.toml`.

python tools/models/training/training_table.py SETS SCORES

It needs tools/models/joined in PYTHONPATH.

Prints a line for each student: the weight of the first pass that was picked, the macro-mean, each set, and the
differences to the baseline and to its own start: standard error, wins, losses and p over all queries. Students
that lack a set are compared on the sets that they have.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from choose import standard_error
from osrerank.evaluation.significance import paired_t_test
from training_states import read_plan, read_set
from values import Floats, Set

BASELINE = "start-e5-small-v2"
EQUAL = 1e-9
"""Differences that are no more than rounding."""

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


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better a student is than another, on the sets that it has.

    Attributes:
        mean: macro-mean of the differences.
        error: its standard error.
        wins, losses: queries.
        p: of a paired t-test over all queries.
    """

    mean: float
    error: float
    wins: int
    losses: int
    p: float

    @classmethod
    def of(cls, values: Values, base: Values, seed: int) -> Self:
        """Return the gain of values over others of the same queries."""
        differences = [values[name] - base[name] for name in values]
        every = np.concatenate(differences)
        wins, losses = int((every > EQUAL).sum()), int((every < -EQUAL).sum())
        p = paired_t_test(every) if wins + losses else 1.0
        error = standard_error(differences, np.random.default_rng(seed))
        return cls(macro_mean(values) - macro_mean(base), error, wins, losses, p)

    def __str__(self) -> str:
        return f"{self.mean:+.4f}, {self.error:.4f}, {self.wins}, {self.losses}, {self.p:.2g}"


def own_start(stem: str, plan: Mapping[str, Any]) -> str:
    """Return the untrained student of a file of scores."""
    for recipe in plan["recipes"]:
        if stem.startswith(f"{recipe['name']}.0"):
            way = "" if recipe["trained"] == "query" else f"-{recipe['layers']}-{recipe['rows']}"
            return f"start-{recipe['start']}{way}"
    return stem


def main() -> None:
    """Print BM25, the baseline and all others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("scores", type=Path)
    options = parser.parse_args()
    plan = read_plan()
    names, weights, rule = plan["development"], plan["first_pass_weight"], plan["rule"]
    sets = {name: Set.of(read_set(options.sets, name, plan)) for name in names}
    bm25 = {name: one.values(one.first_pass) for name, one in sets.items()}
    columns = "difference, its standard error, wins, losses, p"
    print("\t".join(["student", "weight", "mean", *names, f"baseline: {columns}", f"start: {columns}", "rule"]))
    print("\t".join(["BM25", "", f"{macro_mean(bm25):.4f}", *(f"{bm25[name].mean():.4f}" for name in names)]))
    files = {file.stem: file for file in sorted(options.scores.glob("*.npz")) if not file.stem.startswith("teacher")}
    loaded = {stem: {name: np.load(file)[name].astype(float) for name in np.load(file)} for stem, file in files.items()}
    for stem in [BASELINE, *(one for one in loaded if one != BASELINE)]:
        scores = loaded[stem]
        weight, values = measured(scores, sets, weights)
        others = [{name: loaded[other][name] for name in scores} for other in (BASELINE, own_start(stem, plan))]
        gains = [Gain.of(values, measured(other, sets, weights)[1], rule["seed"]) for other in others]
        lowest = min(values[name].mean() - bm25[name].mean() for name in scores)
        passes = gains[0].mean > gains[0].error and lowest >= rule["floor"] and len(scores) == len(names)
        cells = [f"{values[name].mean():.4f}" if name in values else "-" for name in names]
        row = [stem, f"{weight:g}", f"{macro_mean(values):.4f}", *cells, *map(str, gains), "passes" if passes else ""]
        print("\t".join(row))


if __name__ == "__main__":
    main()
