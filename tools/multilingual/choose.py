"""Choose BM25's weight of osrerank/e5-multilingual and fit its map to probabilities: what ``card.toml`` has.

python -m tools.multilingual.choose MODEL LAREQA RUN...

MODEL is the model's directory with which `osrerank run` wrote each RUN, whose name ends with its language: e5-es.run.
LAREQA has a folder for each language, with qrels.txt. Printed are nDCG@10 with each weight, and the calibration.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osrerank.export.calibration import JudgedQuery, fit_judged_queries
from osrerank.formats.lines import numbered_objects
from osrerank.formats.trec import read_qrels
from osrerank.scoring.card import Calibration
from osrerank.scoring.card_file import read_card

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""What BM25's best score adds to a cosine."""
DEPTH = 20
"""The best candidates of BM25, to which probabilities are fitted."""


def judged(run: Path, qrels: Path, calibration: Calibration, depth: int) -> Iterator[JudgedQuery]:
    """Yield the best candidates of each query, with their cosines."""
    judgments = read_qrels(qrels).judgments
    for _, line in numbered_objects(run.with_name(f"{run.name}.jsonl")):
        if not line.get("applied"):
            continue
        best = [candidate for candidate in line["candidates"] if candidate["first_pass"]["rank"] <= depth]
        logits = np.array([one["stages"]["vectors"]["logit"] for one in best])
        first_pass = np.array([one["first_pass"]["score"] for one in best])
        yield JudgedQuery(
            (logits - calibration.offset) / calibration.scale,
            first_pass / first_pass.max(),
            [one["doc_id"] for one in best],
            dict(judgments[line["query_id"]]),
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("lareqa", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    before, cosine = read_card(arguments.model).calibration, Calibration()
    fitted: list[JudgedQuery] = []
    print(f"| run | {' | '.join(f'{weight:g}' for weight in WEIGHTS)} |\n|---|{'---|' * len(WEIGHTS)}")
    for run in arguments.runs:
        qrels = arguments.lareqa / run.stem.rpartition("-")[2] / "qrels.txt"
        queries = list(judged(run, qrels, before, depth=100))
        means = [float(np.mean([query.ndcg(cosine, weight) for query in queries])) for weight in WEIGHTS]
        print(f"| {run.stem} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
        fitted += judged(run, qrels, before, DEPTH)
    print(fit_judged_queries(fitted))


if __name__ == "__main__":
    main()
