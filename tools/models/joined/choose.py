"""Choose start and setting by `protocol.toml` from what `values.py` measured; print what was tried.

python tools/models/joined/choose.py VALUES --round first     # without the articles; prints what they need
python tools/models/joined/choose.py VALUES --table all.tsv   # the choice
python tools/models/joined/choose.py VALUES --any-record      # as if records could be of any size
"""

import argparse
import csv
import io
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from values import STARTS, Setting

FIRST = ("dl21", "squad", "nfcorpus", "scifact", "checkthat", "wikiqa")
ARTICLES = "articles"
SAMPLES, SEED = 2000, 1
MOST_RECORD_BYTES = 10_240
SECOND_START_GAIN, FLOOR, FIRST_ROUND = 0.008, -0.005, 1.0

Floats = npt.NDArray[np.float64]
Tried = Mapping[Setting, Mapping[str, Floats]]
"""Settings, and their values of each set's queries."""


def read(folder: Path, names: Sequence[str]) -> tuple[Tried, Mapping[str, Floats]]:
    """Return the settings that were measured on all sets, and BM25's values."""
    files = {name: _arrays(folder / f"{name}.npz.xz") for name in names}
    bm25 = {name: file["bm25"].astype(float) for name, file in files.items()}
    rows = {
        name: dict(zip(file["settings"].tolist(), file["values"].astype(float), strict=True))
        for name, file in files.items()
    }
    common = [one for one in rows[names[0]] if all(one in each for each in rows.values())]
    return {Setting.of(one): {name: rows[name][one] for name in names} for one in common}, bm25


def _arrays(file: Path) -> dict[str, Any]:
    with lzma.open(file) as opened:
        return dict(np.load(io.BytesIO(opened.read())))


def standard_error(differences: Sequence[Floats], rng: np.random.Generator) -> float:
    """Return the standard error of a macro-mean of paired differences, by a bootstrap stratified by set."""
    means = np.zeros(SAMPLES)
    for values in differences:
        means += values[rng.integers(len(values), size=(SAMPLES, len(values)))].mean(axis=1)
    return float((means / len(differences)).std())


def main() -> None:
    """Print and write what was tried, and the choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", type=Path)
    parser.add_argument("--round", choices=["first", "last"], default="last")
    parser.add_argument("--table", type=Path, help="every setting, its mean and its sets")
    parser.add_argument("--any-record", action="store_true", help="also choose settings whose records are too large")
    options = parser.parse_args()
    names = FIRST if options.round == "first" else (*FIRST, ARTICLES)
    tried, bm25 = read(options.values, names)
    means = {setting: float(np.mean([one.mean() for one in values.values()])) for setting, values in tried.items()}
    ordered = sorted(tried, key=lambda setting: -means[setting])
    if options.table:
        rows = [_row(setting, means[setting], tried[setting], bm25) for setting in ordered]
        with options.table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print("BM25", *(f"{name} {values.mean():.4f}" for name, values in bm25.items()))
    if options.round == "first":
        _show_first_round(ordered, tried)
    else:
        able = [one for one in ordered if options.any_record or one.record_bytes <= MOST_RECORD_BYTES]
        _show_choice(able, tried, means, bm25)


def _row(setting: Setting, mean: float, values: Mapping[str, Floats], bm25: Mapping[str, Floats]) -> dict[str, Any]:
    each = {name: f"{one.mean():.4f}" for name, one in values.items()}
    named = {"start": setting.start, "way": setting.way, "share": setting.share, "weight": setting.weight}
    return {**named, "mean": f"{mean:.4f}", **each, "least difference to BM25": f"{_floor(values, bm25):.4f}"}


def _show_first_round(ordered: Sequence[Setting], tried: Tried) -> None:
    """Print what the articles are scored with: near the best of one start, the bi-encoders, and the best of both."""
    rng = np.random.default_rng(SEED)
    alone = [one for one in ordered if "+" not in one.start]
    both = next(one for one in ordered if "+" in one.start)
    wanted: dict[str, set[str]] = {start: {f"{prefix}/plain/r1" for prefix in ("own", "none")} for start in STARTS}
    for setting in (*_near(alone, tried, FIRST_ROUND, rng), both):
        wanted[setting.start.partition("+")[0]].add(setting.way)
    for start, ways in wanted.items():
        print(start, *sorted(ways))


def _near(ordered: Sequence[Setting], tried: Tried, errors: float, rng: np.random.Generator) -> list[Setting]:
    """Return the settings within so many standard errors of the first."""
    near = []
    for one in ordered:
        differences = [tried[ordered[0]][name] - tried[one][name] for name in tried[one]]
        mean = float(np.mean([values.mean() for values in differences]))
        if mean <= errors * standard_error(differences, rng):
            near.append(one)
    return near


def _show_choice(
    ordered: Sequence[Setting],
    tried: Tried,
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
    near = _near(among, tried, 1.0, rng)
    chosen = min(near, key=lambda one: (one.complexity, -means[one]))
    print(f"{len(near)} settings within one standard error of {among[0]}")
    each = ", ".join(f"{name} {values.mean():.4f}" for name, values in tried[chosen].items())
    print(f"chosen: {chosen} {means[chosen]:.4f}: {each}")


def _floor(values: Mapping[str, Floats], bm25: Mapping[str, Floats]) -> float:
    return min(float(one.mean() - bm25[name].mean()) for name, one in values.items())


if __name__ == "__main__":
    main()
