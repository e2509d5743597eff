"""Measure models as they come on the sets that `sets.py` wrote: nDCG@10 of BM25, of each model alone and as it comes.

python tools/models/joined/measure.py SETS osrerank/mono ./candidate [--only dl21 squad]

As it comes means with the first-pass weight of the model's card; documents beyond the window are read by passages where
the card recommends it, and else cut. Each model is compared with BM25 and with the first model named: wins, losses,
paired t-test.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from osrerank.evaluation.significance import paired_t_test
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.registry import load_scorer
from values import Floats, Set


def scored(scorer: LocalScorer, content: dict[str, Any]) -> Floats:
    """Return the logits of a set's candidates, queries one after the other; of passages the best."""
    found = []
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
    parser.add_argument("models", nargs="+")
    parser.add_argument("--only", nargs="+", help="names of sets; all that are there if not given")
    options = parser.parse_args()
    names = options.only or sorted(file.stem for file in options.sets.glob("*.json"))
    means: dict[str, list[tuple[float, float]]] = {model: [] for model in ("BM25", *options.models)}
    for name in names:
        one, content = Set.read(options.sets / f"{name}.json"), json.loads((options.sets / f"{name}.json").read_text())
        bm25 = one.values(one.first_pass)
        means["BM25"].append((bm25.mean(), bm25.mean()))
        print(f"{name}: {len(bm25)} queries, BM25 {bm25.mean():.4f}", flush=True)
        first: Floats | None = None
        for model in options.models:
            scorer = load_scorer(model)
            logits = scored(scorer, content)
            alone = one.values(logits)
            whole = one.values(logits + scorer.advice.first_pass_weight * one.first_pass)
            means[model].append((float(alone.mean()), float(whole.mean())))
            versus = "" if first is None else f"; to {options.models[0]} {compared(whole, first)}"
            first = whole if first is None else first
            print(f"  {model}: alone {alone.mean():.4f}, as it comes {whole.mean():.4f}", end="")
            print(f"; to BM25 {compared(whole, bm25)}{versus}", flush=True)
            scorer.close()
    for model, pairs in means.items():
        alone, whole = np.mean(pairs, axis=0)
        print(f"mean of {len(names)} sets, {model}: alone {alone:.4f}, as it comes {whole:.4f}")


if __name__ == "__main__":
    main()
