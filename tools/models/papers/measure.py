"""Measure monobert-l6 and duobert-l6 by `protocol.toml` on sets that tools/models/joined/sets.py wrote.

python -m tools.models.papers.measure SETS LOGITS MONO [DUO]

Prints nDCG@10 of BM25 and of MONO alone, or of MONO and then DUO; the means of the sets; and paired t-tests over all
queries together. Each set's logits are kept in LOGITS, so that a run goes on where it was stopped.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.evaluation.basic import ndcg
from osrerank.scoring.registry import load_scorer
from osrerank.types import Scorer
from tools.models.joined.measure import describe_difference, sample_queries

PROTOCOL: Mapping[str, Mapping[str, Any]] = tomllib.loads((Path(__file__).parent / "protocol.toml").read_text("utf-8"))
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvaluatedQuery:
    """A query that models are measured on.

    Attributes:
        query_id: of the set.
        query: its text.
        doc_ids: of BM25's best candidates, in its order.
        texts: theirs; long ones cut.
        relevance: grades of judged documents.
    """

    query_id: str
    query: str
    doc_ids: Sequence[str]
    texts: Sequence[str]
    relevance: Mapping[str, int]

    def value(self, order: Sequence[int]) -> float:
        """Return nDCG@10 of an order of the candidates."""
        return ndcg([self.doc_ids[at] for at in order], self.relevance)


def judged(file: Path, queries: int, depth: int) -> Iterator[EvaluatedQuery]:
    """Yield a set's queries, at most so many, with candidates down to a depth; one without candidates is left out."""
    content = sample_queries(json.loads(file.read_text("utf-8")), queries)
    for query_id, query in content["queries"].items():
        doc_ids = list(content["candidates"][query_id])[:depth]
        texts = [content["beginnings"].get(one, content["texts"][one][0]) for one in doc_ids]
        if doc_ids:
            yield EvaluatedQuery(query_id, query, doc_ids, texts, content["qrels"][query_id])


class SavedLogits:
    """A model's logits, those of an earlier run read from a file."""

    def __init__(self, model: str, name: str, folder: Path, threads: int) -> None:
        self.scorer: Scorer = load_scorer(model, threads=threads)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{Path(model).name}.{name}.npz"
        self._known: dict[str, Any] = dict(np.load(self._file)) if self._file.exists() else {}

    def logits(self, key: str, query: str, texts: Sequence[str], tuples: Sequence[tuple[int, ...]]) -> Floats:
        """Return a logit for each tuple of texts."""
        if key not in self._known:
            self._known[key] = self.scorer.score(query, texts, tuples).values.astype(float)
        found: Floats = self._known[key]
        return found

    def close(self) -> None:
        """Write the logits and release the model."""
        np.savez(self._file, **self._known)
        self.scorer.close()


def mono_order(mono: SavedLogits, one: EvaluatedQuery) -> list[int]:
    """Return the candidates' places as the cross-encoder orders them."""
    logits = mono.logits(one.query_id, one.query, one.texts, [(at,) for at in range(len(one.texts))])
    return [int(at) for at in np.argsort(-logits, kind="stable")]


def duo_order(duo: SavedLogits, one: EvaluatedQuery, order: Sequence[int], depth: int) -> list[int]:
    """Return an order whose first ``depth`` are ordered by the sums of their pairs' probabilities."""
    head = list(order[:depth])
    pairs = [(first, second) for first in range(len(head)) for second in range(len(head)) if first != second]
    if not pairs:
        return list(order)
    logits = duo.logits(f"{one.query_id}@{depth}", one.query, [one.texts[at] for at in head], pairs)
    wins = np.zeros(len(head))
    np.add.at(wins, [first for first, _ in pairs], duo.scorer.probabilities(logits.astype(np.float32)))
    return [head[at] for at in np.argsort(-wins, kind="stable")] + list(order[depth:])


def values_of(name: str, options: argparse.Namespace) -> tuple[Floats, Floats]:
    """Return nDCG@10 of a set's queries before and after the last model."""
    gate = PROTOCOL["duobert-l6" if options.duo else "monobert-l6"]
    own = PROTOCOL["monobert-l6"]
    depth = own.get(f"depth_{name}", own["depth"])
    queries = list(judged(options.sets / f"{name}.json", options.queries or gate["queries"], options.depth or depth))
    before, after = [], []
    mono = SavedLogits(options.mono, name, options.logits, options.threads)
    with closing(mono):
        orders = [mono_order(mono, query) for query in queries]
    if not options.duo:
        before = [query.value(range(len(query.doc_ids))) for query in queries]
        return np.array(before), np.array([one.value(order) for one, order in zip(queries, orders, strict=True)])
    with closing(SavedLogits(options.duo, name, options.logits, options.threads)) as duo:
        for one, order in zip(queries, orders, strict=True):
            before.append(one.value(order))
            after.append(one.value(duo_order(duo, one, order, options.k1 or gate["depth"])))
    return np.array(before), np.array(after)


def main() -> None:
    """Print a line for each set, then the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("mono")
    parser.add_argument("duo", nargs="?")
    parser.add_argument("--only", nargs="+", default=PROTOCOL["development"]["sets"], help="names of sets")
    parser.add_argument("--queries", type=int, default=0, help="of a set; the protocol's if not given")
    parser.add_argument("--depth", type=int, default=0, help="candidates of a query; likewise")
    parser.add_argument("--k1", type=int, default=0, help="candidates that DUO compares; likewise")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    names = ("mono", "mono-duo") if options.duo else ("BM25", "mono")
    found: list[tuple[Floats, Floats]] = []
    for name in options.only:
        before, after = values_of(name, options)
        found.append((before, after))
        line = f"{name}: {len(before)} queries, {names[0]} {before.mean():.4f}, {names[1]} {after.mean():.4f}"
        print(f"{line}; {describe_difference(after, before)}", flush=True)
    means = [np.mean([pair[at].mean() for pair in found]) for at in (0, 1)]
    whole = [np.concatenate([pair[at] for pair in found]) for at in (0, 1)]
    print(f"mean of {len(found)} sets: {names[0]} {means[0]:.4f}, {names[1]} {means[1]:.4f}", end="; ")
    print(f"all queries: {describe_difference(whole[1], whole[0])}")


if __name__ == "__main__":
    main()
