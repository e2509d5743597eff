"""Measure models that compare two documents, after a mono model, on the sets that `sets.py` wrote: nDCG@10.

python tools/models/joined/pairs.py SETS LOGITS MONO DUO... [--only dl21 squad] [--queries 60] [--depth 20]

The mono model as it comes, whose logits `measure.py` keeps in LOGITS, gives each query's first ``depth``; all pairs of
them are decided, and a document's score is the sum of its probabilities (Pradeep et al. 2021, section 3.3). A pair's
logit is the duo model's in the share 1 - s and the difference of the mono model's in the share s; what BM25 adds stays
whole, as in the pipeline.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from measure import compared, kept_logits, sampled
from osrerank.evaluation.basic import ndcg
from osrerank.scoring.registry import load_scorer
from values import Floats, Set

SHARES = (0.0, 0.5, 0.75)


def decided(model: str, content: dict[str, Any], tops: list[list[str]]) -> list[Floats]:
    """Return the logits of each query's pairs, ``(depth, depth)``."""
    scorer = load_scorer(model)
    found = []
    for query, documents in zip(content["queries"].values(), tops, strict=True):
        texts = [content["beginnings"].get(one, content["texts"][one][0]) for one in documents]
        pairs = list(combinations(range(len(texts)), 2))
        logits = np.zeros((len(texts), len(texts)))
        for (i, j), value in zip(pairs, scorer.score(query, texts, pairs).values if pairs else (), strict=True):
            logits[i, j], logits[j, i] = value, -value
        found.append(logits)
    scorer.close()
    return found


def main() -> None:
    """Print a line for each set, model and share, then the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("mono")
    parser.add_argument("duo", nargs="+", help="antisymmetric models: of the layouts joined and cross-bias")
    parser.add_argument("--only", nargs="+", required=True)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--depth", type=int, default=20)
    options = parser.parse_args()
    means: dict[tuple[str, float], list[float]] = {}
    for name in options.only:
        content = sampled(json.loads((options.sets / f"{name}.json").read_text("utf-8")), options.queries)
        one = Set.of(content)
        mono, weight = kept_logits(options.mono, name, content, options.logits)
        whole, bm25 = mono + weight * one.first_pass, weight * one.first_pass
        before = one.values(whole)
        means.setdefault(("mono", 0), []).append(before.mean())
        print(f"{name}: {len(before)} queries, mono {before.mean():.4f}", flush=True)
        parts = [slice(*pair) for pair in zip(one.bounds[:-1], one.bounds[1:], strict=True)]
        orders = [np.argsort(-whole[part], kind="stable") for part in parts]
        tops = [
            [documents[at] for at in order[: options.depth]]
            for documents, order in zip(one.candidates, orders, strict=True)
        ]
        for model in options.duo:
            logits = decided(model, content, tops)
            for share in SHARES:
                values = []
                for place, (part, order) in enumerate(zip(parts, orders, strict=True)):
                    best, rest = order[: options.depth], order[options.depth :]
                    prior, added = mono[part][best], bm25[part][best]
                    mixed = (1 - share) * logits[place] + share * (prior[:, None] - prior)
                    probabilities = 1 / (1 + np.exp(-(mixed + added[:, None] - added)))
                    sums = probabilities.sum(axis=1)
                    ranked = [*best[np.argsort(-sums, kind="stable")], *rest]
                    values.append(ndcg([one.candidates[place][at] for at in ranked], one.relevance[place]))
                means.setdefault((model, share), []).append(float(np.mean(values)))
                print(f"  {model}, {share:g} of mono: {np.mean(values):.4f}; {compared(np.array(values), before)}")
    for (model, share), found in means.items():
        print(f"mean of {len(found)} sets, {model}, {share:g} of mono: {np.mean(found):.4f}")


if __name__ == "__main__":
    main()
