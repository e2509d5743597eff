"""Measure nDCG@10 of BM25 and of models on the sets of `sets.py`, with and without the card's weight of BM25.

python tools/models/joined/measure.py SETS LOGITS osrerank/e5-small ./candidate [--only dl21 squad] [--queries 100]

Document vectors are stored as by default. Long documents are scored by passages if the card recommends it, and
otherwise truncated. Each model is compared with BM25 and with the first model: wins, losses, paired t-test. ECE is the
expected calibration error of all candidates' probabilities, in 15 bins of equal width; unjudged documents count as not
relevant. The logits of each set are stored in LOGITS, so that an interrupted run can be resumed.
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
from osrerank.types.scores import single_documents

BINS = 15

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Set:
    """A set of judged queries with candidates.

    Attributes:
        candidates: the candidates' ids for each query.
        relevance: document id -> relevance, for each query.
        first_pass: the scores of all queries' candidates by BM25, divided by the query's best, ``(n_candidates,)``.
        bounds: the offsets of the queries in such an array, ``(n_queries + 1,)``.
    """

    candidates: Sequence[Sequence[str]]
    relevance: Sequence[Mapping[str, int]]
    first_pass: Floats
    bounds: npt.NDArray[np.int64]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Convert the JSON of `sets.py`."""
        candidates = [list(content["candidates"][query]) for query in content["queries"]]
        scores = [np.array(list(content["candidates"][query].values()), dtype=float) for query in content["queries"]]
        first_pass = [score / score.max() if len(score) and score.max() > 0 else score for score in scores]
        relevance = [content["qrels"][query] for query in content["queries"]]
        return cls(candidates, relevance, np.concatenate(first_pass), np.cumsum([0, *map(len, candidates)]))

    def values(self, scores: Floats) -> Floats:
        """Return nDCG@10 of each query by the scores of all candidates, ``(n_candidates,)``."""
        values = []
        for number, (doc_ids, relevance) in enumerate(zip(self.candidates, self.relevance, strict=True)):
            order = np.argsort(-scores[self.bounds[number] : self.bounds[number + 1]], kind="stable")
            values.append(ndcg([doc_ids[index] for index in order], relevance))
        return np.array(values)


def sample_queries(content: dict[str, Any], max_queries: int) -> dict[str, Any]:
    """Return a set with a random sample of its queries, of at most this number; 0 selects all."""
    names = sorted(content["queries"])
    sample = set(random.Random(1).sample(names, min(max_queries or len(names), len(names))))
    parts = ("queries", "candidates", "qrels")
    selected = {part: {name: value for name, value in content[part].items() if name in sample} for part in parts}
    return {**content, **selected}


def load_logits(model: str, name: str, content: dict[str, Any], folder: Path) -> tuple[Floats, float]:
    """Return a model's logits of a set's candidates, of which only new ones are computed, and its weight of BM25."""
    settings = Settings(vectors="file", vectors_folder=folder / "vectors", vectors_mb=8192)
    scorer = load_scorer(model, settings=settings)
    model_digest = hashlib.sha256(scorer.identity.encode()).hexdigest()[:12]
    file = folder / f"{Path(model).name}.{model_digest}.{name}.npz"
    logits = dict(np.load(file)) if file.exists() else {}
    for query_id in content["queries"]:
        if query_id not in logits:
            logits[query_id] = compute_logits(scorer, content, query_id)
    np.savez(file, **logits)
    scorer.close()
    return np.concatenate([logits[query_id] for query_id in content["queries"]]), scorer.advice.first_pass_weight


def compute_logits(scorer: Scorer, content: dict[str, Any], query_id: str) -> Floats:
    """Return the logits of a query's candidates; the logit of a long document is that of its best passage."""
    doc_ids = list(content["candidates"][query_id])
    passages = [content["texts"][doc_id] for doc_id in doc_ids]
    if not scorer.advice.passages:
        beginnings = content["beginnings"]
        passages = [[beginnings.get(doc_id, texts[0])] for doc_id, texts in zip(doc_ids, passages, strict=True)]
    texts = [text for document in passages for text in document]
    if not texts:
        return np.zeros(0)
    logits = scorer.score(content["queries"][query_id], texts, single_documents(len(texts))).values
    return np.maximum.reduceat(logits, np.cumsum([0, *map(len, passages)])[:-1]).astype(float)


def calibration_error(logits: Floats, relevant: npt.NDArray[np.bool_]) -> float:
    """Return the expected calibration error: the mean gap of probability and relevance in bins, weighted by size."""
    probabilities = 1 / (1 + np.exp(-logits))
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = [abs(float((probabilities[bins == number] - relevant[bins == number]).sum())) for number in range(BINS)]
    return sum(gaps) / len(logits)


def overlap(scores: Floats, others: Floats, bounds: npt.NDArray[np.int64]) -> float:
    """Return the mean share of common documents among the first ten of two rankings."""
    shares = []
    for begin, end in itertools.pairwise(bounds):
        top, reference_top = (
            set(np.argsort(-array[begin:end], kind="stable")[:10].tolist()) for array in (scores, others)
        )
        if end > begin:
            shares.append(len(top & reference_top) / len(top))
    return float(np.mean(shares))


def describe_difference(values: Floats, others: Floats) -> str:
    """Return the mean difference of two measurements of the same queries, with wins, losses and p."""
    difference = values - others
    p = paired_t_test(difference)
    wins, losses = int((difference > 1e-9).sum()), int((difference < -1e-9).sum())
    return f"{difference.mean():+.4f} ({wins} wins, {losses} losses, p = {p:.2g})"


def main() -> None:
    """Print a line for each set and model, and the means of all sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--only", nargs="+", help="names of sets; all sets by default")
    parser.add_argument("--queries", type=int, default=0, help="maximum number of queries per set; 0: all")
    options = parser.parse_args()
    names = options.only or sorted(file.stem for file in options.sets.glob("*.json"))
    options.logits.mkdir(parents=True, exist_ok=True)
    means: dict[str, list[tuple[float, float]]] = {model: [] for model in ("BM25", *options.models)}
    for name in names:
        content = sample_queries(json.loads((options.sets / f"{name}.json").read_text("utf-8")), options.queries)
        judged = Set.of(content)
        pairs = zip(judged.candidates, judged.relevance, strict=True)
        relevant = np.array([relevance.get(doc_id, 0) > 0 for doc_ids, relevance in pairs for doc_id in doc_ids])
        bm25 = judged.values(judged.first_pass)
        means["BM25"].append((bm25.mean(), bm25.mean()))
        print(f"{name}: {len(bm25)} queries, BM25 {bm25.mean():.4f}", flush=True)
        first: tuple[Floats, Floats] | None = None
        for model in options.models:
            logits, weight = load_logits(model, name, content, options.logits)
            scores = logits + weight * judged.first_pass
            alone, blended = judged.values(logits), judged.values(scores)
            means[model].append((float(alone.mean()), float(blended.mean())))
            comparison = ""
            if first is not None:
                difference, share = describe_difference(blended, first[1]), overlap(scores, first[0], judged.bounds)
                comparison = f"; to {options.models[0]} {difference}, {share:.3f} of the first ten shared"
            first = first or (scores, blended)
            print(f"  {model}: alone {alone.mean():.4f}, with BM25 {blended.mean():.4f}", end="")
            print(f"; ECE {calibration_error(logits, relevant):.3f}", end="")
            print(f"; to BM25 {describe_difference(blended, bm25)}{comparison}", flush=True)
    for model, values in means.items():
        alone, blended = np.mean(values, axis=0)
        print(f"mean of {len(names)} sets, {model}: alone {alone:.4f}, with BM25 {blended:.4f}")


if __name__ == "__main__":
    main()
