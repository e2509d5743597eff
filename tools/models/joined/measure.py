"""Measure models as they come on the sets that `sets.py` wrote: nDCG@10 of BM25, of each model alone and as it comes.

python tools/models/joined/measure.py SETS LOGITS osrerank/e5-small ./candidate [--only dl21 squad] [--queries 100]

As it comes means with the first-pass weight of the model's card, and with records of document vectors as they are kept
by default; documents beyond the window are read by passages where the card recommends it, and else cut. Each model is
compared with BM25 and with the first model named: wins, losses, paired t-test. ECE is the expected calibration error of
the probabilities of all candidates: 15 bins of equal width, unjudged counted as not relevant. Each set's logits are
kept in LOGITS, so that a run goes on where it was stopped.
"""

import argparse
import hashlib
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank.evaluation.basic import ndcg
from osrerank.evaluation.significance import paired_t_test
from osrerank.scoring.registry import load_scorer
from osrerank.settings import Settings
from osrerank.types import Scorer

BINS = 15

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Set:
    """A set that `sets.py` wrote.

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
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return what `sets.py` wrote as JSON."""
        candidates = [list(content["candidates"][query]) for query in content["queries"]]
        scores = [np.array(list(content["candidates"][query].values()), dtype=float) for query in content["queries"]]
        first_pass = [score / score.max() if len(score) and score.max() > 0 else score for score in scores]
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


def sampled(content: dict[str, Any], most: int) -> dict[str, Any]:
    """Return a set with at most so many of its queries, drawn with seed 1; all where that is 0."""
    names = sorted(content["queries"])
    kept = set(random.Random(1).sample(names, min(most or len(names), len(names))))
    parts = ("queries", "candidates", "qrels")
    chosen = {part: {name: value for name, value in content[part].items() if name in kept} for part in parts}
    return {**content, **chosen}


def kept_logits(model: str, name: str, content: dict[str, Any], folder: Path) -> tuple[Floats, float]:
    """Return a model's logits of a set's candidates, also of those scored before, and its weight of the first pass."""
    scorer = with_vectors(model, folder)
    content_of_model = hashlib.sha256(scorer.identity.encode()).hexdigest()[:12]
    file = folder / f"{Path(model).name}.{content_of_model}.{name}.npz"
    known = dict(np.load(file)) if file.exists() else {}
    for query_id in content["queries"]:
        if query_id not in known:
            one = {**content, "queries": {query_id: content["queries"][query_id]}}
            known[query_id] = scored(scorer, one)
    np.savez(file, **known)
    scorer.close()
    return np.concatenate([known[query_id] for query_id in content["queries"]]), scorer.advice.first_pass_weight


def with_vectors(model: str, folder: Path) -> Scorer:
    """Return a model that keeps document vectors in a folder's ``vectors``."""
    settings = Settings(vectors="file", vectors_folder=folder / "vectors", vectors_mb=8192)
    return load_scorer(model, settings=settings)


def scored(scorer: Scorer, content: dict[str, Any]) -> Floats:
    """Return the logits of a set's candidates, queries one after the other; of passages the best."""
    found: list[Floats] = [np.zeros(0)]
    for query_id, query in content["queries"].items():
        documents = list(content["candidates"][query_id])
        parts = [content["texts"][doc_id] for doc_id in documents]
        if not scorer.advice.passages:
            whole = content["beginnings"]
            parts = [[whole.get(doc_id, texts[0])] for doc_id, texts in zip(documents, parts, strict=True)]
        texts = [text for some in parts for text in some]
        if texts:
            logits = scorer.score(query, texts, [(place,) for place in range(len(texts))]).values
            found.append(np.maximum.reduceat(logits, np.cumsum([0, *map(len, parts)])[:-1]).astype(float))
    return np.concatenate(found)


def calibration_error(logits: Floats, relevant: npt.NDArray[np.bool_]) -> float:
    """Return the expected calibration error of probabilities: the bins' mean gaps, weighted by their sizes."""
    probabilities = 1 / (1 + np.exp(-logits))
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = [abs(float((probabilities[bins == number] - relevant[bins == number]).sum())) for number in range(BINS)]
    return sum(gaps) / len(logits)


def overlap(scores: Floats, others: Floats, bounds: npt.NDArray[np.int64]) -> float:
    """Return the share of each query's first ten that both rankings have, on average."""
    shares = []
    for begin, end in itertools.pairwise(bounds):
        tops = [set(np.argsort(-one[begin:end], kind="stable")[:10].tolist()) for one in (scores, others)]
        if end > begin:
            shares.append(len(tops[0] & tops[1]) / len(tops[0]))
    return float(np.mean(shares))


def compared(values: Floats, others: Floats) -> str:
    """Return a difference, its wins and losses, and p."""
    difference = values - others
    p = paired_t_test(difference)
    wins, losses = int((difference > 1e-9).sum()), int((difference < -1e-9).sum())
    return f"{difference.mean():+.4f} ({wins} wins, {losses} losses, p = {p:.2g})"


def main() -> None:
    """Print a line for each set and model, then the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--only", nargs="+", help="names of sets; all that are there if not given")
    parser.add_argument("--queries", type=int, default=0, help="at most so many of each set, drawn with seed 1")
    options = parser.parse_args()
    names = options.only or sorted(file.stem for file in options.sets.glob("*.json"))
    options.logits.mkdir(parents=True, exist_ok=True)
    means: dict[str, list[tuple[float, float]]] = {model: [] for model in ("BM25", *options.models)}
    for name in names:
        content = sampled(json.loads((options.sets / f"{name}.json").read_text("utf-8")), options.queries)
        one = Set.of(content)
        relevant = np.array(
            [
                grades.get(doc_id, 0) > 0
                for documents, grades in zip(one.candidates, one.relevance, strict=True)
                for doc_id in documents
            ]
        )
        bm25 = one.values(one.first_pass)
        means["BM25"].append((bm25.mean(), bm25.mean()))
        print(f"{name}: {len(bm25)} queries, BM25 {bm25.mean():.4f}", flush=True)
        first: tuple[Floats, Floats] | None = None
        for model in options.models:
            logits, weight = kept_logits(model, name, content, options.logits)
            alone = one.values(logits)
            whole = one.values(logits + weight * one.first_pass)
            means[model].append((float(alone.mean()), float(whole.mean())))
            versus = ""
            if first is not None:
                shared = overlap(logits + weight * one.first_pass, first[0], one.bounds)
                versus = f"; to {options.models[0]} {compared(whole, first[1])}, {shared:.3f} of the first ten shared"
            first = (logits + weight * one.first_pass, whole) if first is None else first
            print(f"  {model}: alone {alone.mean():.4f}, as it comes {whole.mean():.4f}", end="")
            print(f"; ECE {calibration_error(logits, relevant):.3f}", end="")
            print(f"; to BM25 {compared(whole, bm25)}{versus}", flush=True)
    for model, pairs in means.items():
        alone, whole = np.mean(pairs, axis=0)
        print(f"mean of {len(names)} sets, {model}: alone {alone:.4f}, as it comes {whole:.4f}")


if __name__ == "__main__":
    main()
