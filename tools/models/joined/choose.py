"""Choose start and setting by `protocol.toml` from the scores of `sweep.py`; print what was tried.

python tools/models/joined/choose.py SETS SCORES --round first     # without the articles; prints what they need
python tools/models/joined/choose.py SETS SCORES --table all.tsv   # the choice
"""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.adapt.choose import SHARES, WEIGHTS
from osrerank.evaluation.basic import ndcg

STARTS = ("bge-small-en-v1.5", "e5-small-v2")
FIRST = ("dl21", "squad", "nfcorpus", "scifact", "checkthat", "wikiqa")
ARTICLES = "articles"
SPREAD_ON = "squad"
SAMPLES, SEED = 2000, 1
SECOND_START_GAIN, FLOOR, FIRST_ROUND = 0.008, -0.005, 2.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Set:
    """A development set.

    Attributes:
        candidates: of each query.
        relevance: of each query.
        first_pass: BM25's score over the query's best, queries one after the other.
        bounds: where each query's candidates begin and end.
    """

    candidates: Sequence[Sequence[str]]
    relevance: Sequence[Mapping[str, int]]
    first_pass: Floats
    bounds: npt.NDArray[np.int64]

    @classmethod
    def read(cls, file: Path) -> "Set":
        """Read one that `sets.py` wrote."""
        content = json.loads(file.read_text("utf-8"))
        candidates = [list(content["candidates"][query]) for query in content["queries"]]
        scores = [np.array(list(content["candidates"][query].values()), dtype=float) for query in content["queries"]]
        first_pass = [one / one.max() if len(one) and one.max() > 0 else one for one in scores]
        relevance = [content["qrels"][query] for query in content["queries"]]
        return cls(candidates, relevance, np.concatenate(first_pass), np.cumsum([0, *map(len, candidates)]))

    def values(self, scores: Floats) -> Floats:
        """Return nDCG@10 of each query by scores of its candidates."""
        found = []
        for place, (documents, relevance) in enumerate(zip(self.candidates, self.relevance, strict=True)):
            own = scores[self.bounds[place] : self.bounds[place + 1]]
            order = np.argsort(-own, kind="stable")
            found.append(ndcg([documents[at] for at in order], relevance))
        return np.array(found)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried.

    Attributes:
        start: name, or both with a plus.
        way: name of the scores in the sweep's files.
        share: of the plain cosine.
        weight: of the first pass.
    """

    start: str
    way: str
    share: float
    weight: float

    @property
    def layers(self) -> int:
        """Joined layers."""
        return 0 if "plain" in self.way else int(self.way.split("/m")[1][0])

    @property
    def complexity(self) -> tuple[object, ...]:
        """Sorts simpler settings first, by `protocol.toml`."""
        merging = float(self.way.rpartition("/r")[2])
        prefix = self.way.startswith("own") and self.start.startswith("bge")
        return "+" in self.start, self.layers, "all" in self.way, -merging, self.share > 0, prefix


class Scores:
    """The sweep's scores of some sets."""

    def __init__(self, folder: Path, sets: Sequence[str]) -> None:
        self._files = {(start, name): np.load(folder / f"{start}.{name}.npz") for start, name in product(STARTS, sets)}
        self._spread = {start: float(self.of(start, self._plain("own"), SPREAD_ON).std()) for start in STARTS}

    def ways(self, start: str, name: str) -> list[str]:
        """Return the names of a start's settings on a set."""
        return list(self._files[start, name].files)

    def of(self, start: str, way: str, name: str) -> Floats:
        """Return the scores of a setting on a set."""
        found: Floats = self._files[start, name][way].astype(float)
        return found

    def mixed(self, setting: Setting, name: str) -> Floats:
        """Return a setting's scores on a set, without the first pass's; a second start has equal shares."""
        first, _, second = setting.start.partition("+")
        prefix = setting.way.partition("/")[0]
        own = self.of(first, setting.way, name)
        if setting.share:
            own = own + setting.share * (self.of(first, self._plain(prefix), name) - own)
        if not second:
            return own
        scale = self._spread[first] / self._spread[second]
        return (own + scale * self.of(second, self._plain("own"), name)) / 2

    @staticmethod
    def _plain(prefix: str) -> str:
        return f"{prefix}/plain/r1"


def settings(scores: Scores, sets: Sequence[str]) -> Iterator[Setting]:
    """Yield what is tried: every setting that was scored on all sets."""
    for start, other in (STARTS, STARTS[::-1]):
        common = set.intersection(*(set(scores.ways(start, name)) for name in sets))
        for way in sorted(common):
            shares = (0.0,) if "plain" in way else SHARES
            for whole, share, weight in product((start, f"{start}+{other}"), shares, WEIGHTS):
                yield Setting(whole, way, share, weight)


def standard_error(differences: Sequence[Floats], rng: np.random.Generator) -> float:
    """Return the standard error of a macro-mean of paired differences, by a bootstrap stratified by set."""
    means = np.zeros(SAMPLES)
    for values in differences:
        means += values[rng.integers(len(values), size=(SAMPLES, len(values)))].mean(axis=1)
    return float((means / len(differences)).std())


def main() -> None:
    """Print and write what was tried, and the choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--round", choices=["first", "last"], default="last")
    parser.add_argument("--table", type=Path, help="every setting, its mean and its sets")
    options = parser.parse_args()
    names = FIRST if options.round == "first" else (*FIRST, ARTICLES)
    sets = {name: Set.read(options.sets / f"{name}.json") for name in names}
    scores = Scores(options.scores, names)
    bm25 = {name: one.values(one.first_pass) for name, one in sets.items()}
    tried: dict[Setting, dict[str, Floats]] = {}
    for setting in settings(scores, names):
        tried[setting] = {
            name: one.values(scores.mixed(setting, name) + setting.weight * one.first_pass)
            for name, one in sets.items()
        }
    means = {setting: float(np.mean([one.mean() for one in values.values()])) for setting, values in tried.items()}
    ordered = sorted(tried, key=lambda setting: -means[setting])
    rows = [_row(setting, means[setting], tried[setting], bm25) for setting in ordered]
    if options.table:
        with options.table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print("BM25", *(f"{name} {values.mean():.4f}" for name, values in bm25.items()))
    if options.round == "first":
        _show_first_round(ordered, tried)
    else:
        _show_choice(ordered, tried, means, bm25)


def _row(setting: Setting, mean: float, values: Mapping[str, Floats], bm25: Mapping[str, Floats]) -> dict[str, Any]:
    each = {name: f"{one.mean():.4f}" for name, one in values.items()}
    floor = min(float(one.mean() - bm25[name].mean()) for name, one in values.items())
    named = {"start": setting.start, "way": setting.way, "share": setting.share, "weight": setting.weight}
    return {**named, "mean": f"{mean:.4f}", **each, "least difference to BM25": f"{floor:.4f}"}


def _show_first_round(ordered: Sequence[Setting], tried: Mapping[Setting, Mapping[str, Floats]]) -> None:
    """Print the settings that the articles are scored with: near the best of one start, and the bi-encoders."""
    rng = np.random.default_rng(SEED)
    best = ordered[0]
    wanted: dict[str, set[str]] = {start: {f"{prefix}/plain/r1" for prefix in ("own", "none")} for start in STARTS}
    for setting in ordered:
        differences = [tried[best][name] - tried[setting][name] for name in tried[best]]
        mean = float(np.mean([one.mean() for one in differences]))
        if mean <= FIRST_ROUND * standard_error(differences, rng):
            wanted[setting.start.partition("+")[0]].add(setting.way)
    for start, ways in wanted.items():
        print(start, *sorted(ways))


def _show_choice(
    ordered: Sequence[Setting],
    tried: Mapping[Setting, Mapping[str, Floats]],
    means: Mapping[Setting, float],
    bm25: Mapping[str, Floats],
) -> None:
    rng = np.random.default_rng(SEED)
    able = [one for one in ordered if _floor(tried[one], bm25) >= FLOOR]
    alone = [one for one in able if "+" not in one.start]
    both = [one for one in able if "+" in one.start]
    print(f"best of one start: {alone[0]} {means[alone[0]]:.4f}; of both: {both[0]} {means[both[0]]:.4f}")
    gain = means[both[0]] - means[alone[0]]
    print(f"a second start gains {gain:.4f}; it needs {SECOND_START_GAIN}")
    among = able if gain >= SECOND_START_GAIN else alone
    best = among[0]
    near = []
    for one in among:
        differences = [tried[best][name] - tried[one][name] for name in tried[best]]
        mean = float(np.mean([values.mean() for values in differences]))
        if mean <= standard_error(differences, rng):
            near.append(one)
    chosen = min(near, key=lambda one: (one.complexity, -means[one]))
    print(f"{len(near)} settings within one standard error of {best}")
    each = ", ".join(f"{name} {values.mean():.4f}" for name, values in tried[chosen].items())
    print(f"chosen: {chosen} {means[chosen]:.4f}: {each}")


def _floor(values: Mapping[str, Floats], bm25: Mapping[str, Floats]) -> float:
    return min(float(one.mean() - bm25[name].mean()) for name, one in values.items())


if __name__ == "__main__":
    main()
