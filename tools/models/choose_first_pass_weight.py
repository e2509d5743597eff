"""Choose a model's `first_pass_weight`: the one with the best nDCG@10, averaged over development sets.

osrerank rerank --candidates squad.jsonl --blend replace --depth 100 --output squad.run
python tools/models/choose_first_pass_weight.py squad.run.jsonl:squad.qrels scifact.run.jsonl:scifact.qrels

Each set is a side file of `osrerank run` or `osrerank rerank`, made with `--blend replace`, and its judgments.
"""

import sys
from pathlib import Path
from typing import Any

import ir_measures

from osrerank.formats.lines import numbered_objects

WEIGHTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15)
MEASURE = ir_measures.parse_measure("nDCG@10")


def blended(record: dict[str, Any], weight: float) -> dict[str, float]:
    """Return the linear blend's score of each document that the model scored."""
    best = max((candidate["first_pass"]["score"] for candidate in record["candidates"]), default=0) or 1
    return {
        candidate["doc_id"]: candidate["stages"]["mono"]["score"] + weight * candidate["first_pass"]["score"] / best
        for candidate in record["candidates"]
        if "mono" in candidate["stages"]
    }


def records_of(side_file: str) -> list[dict[str, Any]]:
    """Return a side file's queries."""
    return [line for _, line in numbered_objects(Path(side_file)) if "candidates" in line]


def judged_of(qrels: str, records: list[dict[str, Any]]) -> list[Any]:
    """Return the judgments of the queries that were asked."""
    asked = {record["query_id"] for record in records}
    return [line for line in ir_measures.read_trec_qrels(qrels) if line.query_id in asked]


def main(pairs: list[str]) -> None:
    """Print a table of weights and sets."""
    sets = []
    for pair in pairs:
        side_file, _, qrels = pair.partition(":")
        records = records_of(side_file)
        sets.append((records, judged_of(qrels, records)))
    print("weight", *(Path(pair.partition(":")[0]).stem for pair in pairs), "mean", sep="\t")
    for weight in WEIGHTS:
        values = [
            ir_measures.calc_aggregate([MEASURE], qrels, {r["query_id"]: blended(r, weight) for r in records})[MEASURE]
            for records, qrels in sets
        ]
        print(weight, *(f"{value:.4f}" for value in [*values, sum(values) / len(values)]), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1:])
