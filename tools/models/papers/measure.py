"""Measure monobert-l6 and duobert-l6 by `protocol.toml` on the sets of tools/models/joined/sets.py.

python -m tools.models.papers.measure SETS LOGITS MONO [DUO]

The output is nDCG@10 of BM25 and MONO, or of MONO and mono-duo, for each set and on average, with paired t-tests. The
logits of each set are stored in LOGITS, so that an interrupted run can be resumed.
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
from osrerank.types.scores import single_documents
from tools.models.joined.measure import describe_difference, sample_queries

PROTOCOL: Mapping[str, Mapping[str, Any]] = tomllib.loads((Path(__file__).parent / "protocol.toml").read_text("utf-8"))
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvaluatedQuery:
    """A judged query with its candidates.

    Attributes:
        query_id: the id of the query.
        query: the text of the query.
        doc_ids: the ids of BM25's best candidates, in BM25's order.
        texts: the texts of the candidates, of long ones the beginning.
        relevance: document id -> relevance.
    """

    query_id: str
    query: str
    doc_ids: Sequence[str]
    texts: Sequence[str]
    relevance: Mapping[str, int]

    def value(self, order: Sequence[int]) -> float:
        """Return nDCG@10 of an order, given as indices of the candidates."""
        return ndcg([self.doc_ids[index] for index in order], self.relevance)


def read_set(file: Path, max_queries: int, depth: int) -> Iterator[EvaluatedQuery]:
    """Yield a sample of a set's queries that have candidates, with their first ``depth`` candidates."""
    content = sample_queries(json.loads(file.read_text("utf-8")), max_queries)
    for query_id, query in content["queries"].items():
        doc_ids = list(content["candidates"][query_id])[:depth]
        texts = [content["beginnings"].get(doc_id, content["texts"][doc_id][0]) for doc_id in doc_ids]
        if doc_ids:
            yield EvaluatedQuery(query_id, query, doc_ids, texts, content["qrels"][query_id])


class SavedLogits:
    """A model, and its logits of a set in a file, of which only new ones are computed."""

    def __init__(self, model: str, name: str, folder: Path, threads: int) -> None:
        self.scorer: Scorer = load_scorer(model, threads=threads)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{Path(model).name}.{name}.npz"
        self._logits: dict[str, Any] = dict(np.load(self._file)) if self._file.exists() else {}

    def logits(self, key: str, query: str, texts: Sequence[str], tuples: Sequence[tuple[int, ...]]) -> Floats:
        """Return a logit for each tuple of texts."""
        if key not in self._logits:
            self._logits[key] = self.scorer.score(query, texts, tuples).values.astype(float)
        logits: Floats = self._logits[key]
        return logits

    def close(self) -> None:
        """Write the logits and release the model."""
        np.savez(self._file, **self._logits)
        self.scorer.close()


def rank_mono(mono: SavedLogits, query: EvaluatedQuery) -> list[int]:
    """Return the indices of the candidates in the order of the cross-encoder."""
    tuples = single_documents(len(query.texts))
    logits = mono.logits(query.query_id, query.query, query.texts, tuples)
    return [int(index) for index in np.argsort(-logits, kind="stable")]


def rank_duo(duo: SavedLogits, query: EvaluatedQuery, order: Sequence[int], depth: int) -> list[int]:
    """Sort the first ``depth`` candidates of an order by the sums of their pairs' probabilities."""
    head = list(order[:depth])
    pairs = [(first, second) for first in range(len(head)) for second in range(len(head)) if first != second]
    if not pairs:
        return list(order)
    logits = duo.logits(f"{query.query_id}@{depth}", query.query, [query.texts[index] for index in head], pairs)
    sums = np.zeros(len(head))
    np.add.at(sums, [first for first, _ in pairs], duo.scorer.probabilities(logits.astype(np.float32)))
    return [head[index] for index in np.argsort(-sums, kind="stable")] + list(order[depth:])


def measure_set(name: str, options: argparse.Namespace) -> tuple[Floats, Floats]:
    """Return nDCG@10 of a set's queries before and after the last model."""
    mono_protocol = PROTOCOL["monobert-l6"]
    protocol = PROTOCOL["duobert-l6"] if options.duo else mono_protocol
    depth = options.depth or mono_protocol.get(f"depth_{name}", mono_protocol["depth"])
    queries = list(read_set(options.sets / f"{name}.json", options.queries or protocol["queries"], depth))
    with closing(SavedLogits(options.mono, name, options.logits, options.threads)) as mono:
        orders = [rank_mono(mono, query) for query in queries]
    mono_values = np.array([query.value(order) for query, order in zip(queries, orders, strict=True)])
    if not options.duo:
        return np.array([query.value(range(len(query.doc_ids))) for query in queries]), mono_values
    k1 = options.k1 or protocol["depth"]
    with closing(SavedLogits(options.duo, name, options.logits, options.threads)) as duo:
        pairs = zip(queries, orders, strict=True)
        duo_values = np.array([query.value(rank_duo(duo, query, order, k1)) for query, order in pairs])
    return mono_values, duo_values


def main() -> None:
    """Print a line for each set, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("mono")
    parser.add_argument("duo", nargs="?")
    parser.add_argument("--only", nargs="+", default=PROTOCOL["development"]["sets"], help="names of sets")
    parser.add_argument("--queries", type=int, default=0, help="queries per set; 0: the protocol's")
    parser.add_argument("--depth", type=int, default=0, help="candidates per query; 0: the protocol's")
    parser.add_argument("--k1", type=int, default=0, help="candidates that DUO compares; 0: the protocol's")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    names = ("mono", "mono-duo") if options.duo else ("BM25", "mono")
    results: list[tuple[Floats, Floats]] = []
    for name in options.only:
        before, after = measure_set(name, options)
        results.append((before, after))
        line = f"{name}: {len(before)} queries, {names[0]} {before.mean():.4f}, {names[1]} {after.mean():.4f}"
        print(f"{line}; {describe_difference(after, before)}", flush=True)
    means = [np.mean([pair[side].mean() for pair in results]) for side in (0, 1)]
    all_before, all_after = (np.concatenate([pair[side] for pair in results]) for side in (0, 1))
    print(f"mean of {len(results)} sets: {names[0]} {means[0]:.4f}, {names[1]} {means[1]:.4f}", end="; ")
    print(f"all queries: {describe_difference(all_after, all_before)}")


if __name__ == "__main__":
    main()
