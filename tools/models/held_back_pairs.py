"""Count which held-back pairs a duo model decides rightly, and which the difference of a mono model's scores does.

python tools/models/held_back_pairs.py osrerank/mono my-duo dev.jsonl
python tools/models/held_back_pairs.py osrerank/mono my-duo dev.jsonl --others 5 --hardest

A pair is a relevant document and one of a query's others: the first of them, or with ``--hardest`` those that mono
ranks highest, which are what a duo stage sees and where mono is at its worst. p is of an exact two-sided sign test.
"""

import argparse
from itertools import islice, product
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from osrerank.scoring.local import LocalScorer
from osrerank.scoring.registry import load_scorer
from osrerank.training.examples.lists import Example, read_examples


def decided(
    mono: LocalScorer, duo: LocalScorer, example: Example, others: int, *, hardest: bool
) -> list[tuple[bool, bool]]:
    """Return for each pair of a query whether mono and duo prefer the relevant document."""
    relevant, rest = list(example.relevant), list(example.others)
    texts = [*relevant, *(rest if hardest else rest[:others])]
    scores = mono.score(example.query, texts, [(place,) for place in range(len(texts))]).values
    behind = range(len(relevant), len(texts))
    compared = sorted(behind, key=lambda place: -scores[place])[:others]
    pairs = list(product(range(len(relevant)), compared))
    logits = duo.score(example.query, texts, pairs).values
    return [(bool(scores[i] > scores[j]), bool(z > 0)) for (i, j), z in zip(pairs, logits, strict=True)]


def main() -> None:
    """Print the shares and the test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mono")
    parser.add_argument("duo")
    parser.add_argument("examples", type=Path, help="as `osrerank train data` writes them")
    parser.add_argument("--others", type=int, default=8, help="of each query")
    parser.add_argument("--hardest", action="store_true")
    parser.add_argument("--queries", type=int, default=1_000_000)
    options = parser.parse_args()
    mono, duo = load_scorer(options.mono, kind="mono"), load_scorer(options.duo, kind="duo")
    rows = [
        pair
        for example in islice(read_examples(options.examples), options.queries)
        for pair in decided(mono, duo, example, options.others, hardest=options.hardest)
    ]
    by_mono, by_duo = np.array(rows, dtype=bool).T
    won, lost = int((by_duo & ~by_mono).sum()), int((by_mono & ~by_duo).sum())
    p = binomtest(won, won + lost).pvalue if won + lost else 1.0
    print(f"{len(rows)} pairs: mono {by_mono.mean():.4f}, duo {by_duo.mean():.4f}; only duo {won}, only mono {lost}")
    print(f"p = {p:.2g}")


if __name__ == "__main__":
    main()
