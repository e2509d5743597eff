"""Measure every setting that `sweep.py` scored, query by query, without choosing: the log of what was tried.

python tools/models/joined/values.py SETS SCORES VALUES [--only dl21 ...]

Each set gives one file, ``SET.npz.xz``: ``settings`` (their names), ``values`` (nDCG@10 in 16 bits, a row for each
setting, a column for each query) and ``bm25`` (of each query). A set needs the scores of both starts.
"""

import argparse
import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank.adapt.choose import SHARES, WEIGHTS
from osrerank.evaluation.basic import ndcg

STARTS = ("bge-small-en-v1.5", "e5-small-v2")
SPREAD_ON = "squad"
HIDDEN, PIECES = 384, 90

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
    def read(cls, file: Path) -> Self:
        """Read one that `sets.py` wrote."""
        return cls.of(json.loads(file.read_text("utf-8")))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return what `sets.py` wrote as JSON."""
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

    def __str__(self) -> str:
        return " ".join(str(part) for part in astuple(self))

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a setting's name."""
        start, way, share, weight = text.split()
        return cls(start, way, float(share), float(weight))

    @property
    def layers(self) -> int:
        """Joined layers."""
        return 0 if "plain" in self.way else int(self.way.split("/m")[1][0])

    @property
    def merging(self) -> float:
        """Pieces for each row of a document, on average."""
        return float(self.way.rpartition("/r")[2])

    @property
    def record_bytes(self) -> int:
        """What is kept of a passage of 90 pieces, in 8 bits."""
        return HIDDEN * (1 + self.layers * math.ceil(PIECES / self.merging))

    @property
    def complexity(self) -> tuple[Any, ...]:
        """Sorts simpler settings first, by `protocol.toml`."""
        prefix = self.way.startswith("own") and self.start.startswith("bge")
        return "+" in self.start, self.layers, "all" in self.way, -self.merging, self.share > 0, prefix


class Scores:
    """The sweep's scores of some sets."""

    def __init__(self, folder: Path, sets: Sequence[str]) -> None:
        wanted = product(STARTS, {*sets, SPREAD_ON})
        self._files = {(start, name): np.load(folder / f"{start}.{name}.npz") for start, name in wanted}
        self._spread = {start: float(self.of(start, self._plain("own"), SPREAD_ON).std()) for start in STARTS}

    def settings(self, name: str) -> Iterator[Setting]:
        """Yield what is tried on a set."""
        for start, other in (STARTS, STARTS[::-1]):
            for way in sorted(self._files[start, name].files):
                shares = (0.0,) if "plain" in way else SHARES
                for whole, share, weight in product((start, f"{start}+{other}"), shares, WEIGHTS):
                    yield Setting(whole, way, share, weight)

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


def main() -> None:
    """Write the files of values that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("values", type=Path)
    parser.add_argument("--only", nargs="+", required=True, help="names of sets")
    options = parser.parse_args()
    options.values.mkdir(parents=True, exist_ok=True)
    scores = Scores(options.scores, options.only)
    for name in options.only:
        one = Set.read(options.sets / f"{name}.json")
        tried = list(scores.settings(name))
        measured = [one.values(scores.mixed(setting, name) + setting.weight * one.first_pass) for setting in tried]
        arrays: dict[str, Any] = {
            "settings": np.array([str(setting) for setting in tried]),
            "values": np.array(measured, dtype=np.float16),
            "bm25": one.values(one.first_pass).astype(np.float16),
        }
        with lzma.open(options.values / f"{name}.npz.xz", "wb", preset=9) as file:  # half of what NumPy makes of it
            np.savez(file, **arrays)
        print(f"{name}: {len(tried)} settings", flush=True)


if __name__ == "__main__":
    main()
