"""Compare two models on the pooled queries of several collections: nDCG@10 of each, and a paired t-test over all.

python tools/models/pooled_comparison.py 7 8 qrels.txt:before.run.jsonl:after.run.jsonl ...

The numbers are the weight of the best first-pass score beside each model's logits, 0 for its own order. Side files are
those of ``osrerank run`` and ``osrerank rerank`` with ``--blend replace``; a query of which one found nothing counts 0.
"""

import sys
from typing import Any

import ir_measures
import numpy as np

from choose_first_pass_weight import MEASURE, blended, judged_of, records_of
from osrerank.evaluation.significance import paired_t_test


def first_pass(record: dict[str, Any]) -> dict[str, float]:
    """Return the first pass's scores."""
    return {candidate["doc_id"]: candidate["first_pass"]["score"] for candidate in record["candidates"]}


def values(run: dict[str, dict[str, float]], judged: list[Any]) -> dict[str, float]:
    """Return the measure of each judged query."""
    found = {one.query_id: one.value for one in ir_measures.iter_calc([MEASURE], judged, run)}
    return {query: found.get(query, 0.0) for query in sorted({one.query_id for one in judged if one.relevance > 0})}


def main(arguments: list[str]) -> None:
    """Print a line for each set, and one for all."""
    weights = [float(one) for one in arguments[:2]]
    pooled: list[np.ndarray] = []
    for triple in arguments[2:]:
        qrels, *side_files = triple.split(":")
        both = [records_of(file) for file in side_files]
        judged = judged_of(qrels, both[0])
        runs = [{one["query_id"]: first_pass(one) for one in both[0]}]
        runs += [
            {one["query_id"]: blended(one, weight) for one in some} for some, weight in zip(both, weights, strict=True)
        ]
        table = np.array([list(values(run, judged).values()) for run in runs])
        show(side_files[0], table)
        pooled.append(table)
    show("pooled", np.concatenate(pooled, axis=1))


def show(name: str, table: np.ndarray) -> None:
    """Print the means of first pass and both models ``(3, queries)``, and the test between the models."""
    p = paired_t_test(table[2] - table[1])
    print(name, f"{table.shape[1]} queries", *(f"{mean:.4f}" for mean in table.mean(axis=1)), f"p = {p:.2g}", sep="\t")


if __name__ == "__main__":
    main(sys.argv[1:])
