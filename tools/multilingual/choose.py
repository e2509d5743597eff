"""Print the figures for ``card.toml`` of osrerank/e5-multilingual: nDCG@10 by BM25's weight, and the calibration.

python -m tools.multilingual.choose MODEL LAREQA RUN...

MODEL is the directory of the model with which `osrerank run` wrote each RUN; the name of a run ends with its language,
as in e5-es.run. LAREQA has a folder per language, with qrels.txt.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osrerank.export.calibration import JudgedQuery, calibrate_on_queries
from osrerank.formats.lines import read_numbered_objects
from osrerank.formats.trec import read_qrels
from osrerank.scoring.card import Calibration
from osrerank.scoring.card_file import read_card

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Weights of BM25: what its best score adds to a cosine."""
CALIBRATION_DEPTH = 20
"""The number of BM25's best candidates to which the calibration is fitted."""


def read_judged_queries(run: Path, qrels: Path, calibration: Calibration, depth: int) -> Iterator[JudgedQuery]:
    """Yield the queries of a run with BM25's best candidates; the model's calibration converts logits to cosines."""
    judgments = read_qrels(qrels).judgments
    for _, line in read_numbered_objects(run.with_name(f"{run.name}.jsonl")):
        if not line.get("applied"):
            continue
        candidates = [candidate for candidate in line["candidates"] if candidate["first_pass"]["rank"] <= depth]
        logits = np.array([candidate["stages"]["vectors"]["logit"] for candidate in candidates])
        first_pass = np.array([candidate["first_pass"]["score"] for candidate in candidates])
        yield JudgedQuery(
            (logits - calibration.offset) / calibration.scale,
            first_pass / first_pass.max(),
            [candidate["doc_id"] for candidate in candidates],
            dict(judgments[line["query_id"]]),
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("lareqa", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    calibration = read_card(arguments.model).calibration
    identity = Calibration()
    calibration_queries: list[JudgedQuery] = []
    print(f"| run | {' | '.join(f'{weight:g}' for weight in WEIGHTS)} |\n|---|{'---|' * len(WEIGHTS)}")
    for run in arguments.runs:
        qrels = arguments.lareqa / run.stem.rpartition("-")[2] / "qrels.txt"
        queries = list(read_judged_queries(run, qrels, calibration, depth=100))
        means = [float(np.mean([query.ndcg(identity, weight) for query in queries])) for weight in WEIGHTS]
        print(f"| {run.stem} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
        calibration_queries += read_judged_queries(run, qrels, calibration, CALIBRATION_DEPTH)
    print(calibrate_on_queries(calibration_queries))


if __name__ == "__main__":
    main()
