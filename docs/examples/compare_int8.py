"""Compare ways to quantise a bi-encoder in the layout ``cross-bias``: size, quality and speed, as a Markdown table.

python docs/examples/compare_int8.py all-MiniLM-L6-v2 dl19.jsonl:qrels.full.txt squad.jsonl:squad.qrels
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from osrerank.evaluation.measures import evaluate
from osrerank.evaluation.trec import read_qrels
from osrerank.scoring.factory import load_scorer
from osrerank.scoring.local import LocalScorer
from osrerank.training.export import ExportOptions, export_model
from osrerank.training.quantise import Recipe
from osrerank.types import Run, ScoredDocument

MEASURE = "nDCG@10"
CHANNELS = Recipe(reduce_range=False)
VARIANTS = {
    "fp32": None,
    "one scale a matrix, one for the words": replace(CHANNELS, per_channel=False, embeddings="table"),
    "one scale a matrix": replace(CHANNELS, per_channel=False),
    "per channel": CHANNELS,
    "per channel, unsigned weights": replace(CHANNELS, weights="uint8"),
    "per channel, 7 bits (shipped)": Recipe(),
    "per channel, 7 bits, narrowing matrices in fp32": Recipe(keep_fp32=("narrow",)),
}


def rerank(scorer: LocalScorer, candidates: Path) -> tuple[Run, float]:
    """Return the reranked run, and the median over queries of pairs scored a second."""
    rankings, speeds = {}, []
    for line in candidates.read_text(encoding="utf-8").splitlines():
        query = json.loads(line)
        texts = [f"{entry.get('title', '')} {entry['text']}".strip() for entry in query["candidates"]]
        started = time.perf_counter()
        values = scorer.score(query["query"], texts, [(index,) for index in range(len(texts))]).values
        speeds.append(len(texts) / (time.perf_counter() - started))
        scored = zip(query["candidates"], values.tolist(), strict=True)
        documents = [ScoredDocument(entry["doc_id"], value) for entry, value in scored]
        rankings[query["query_id"]] = tuple(sorted(documents, key=lambda document: -document.score))
    return Run(rankings), statistics.median(speeds)


def main() -> None:
    """Export each variant into a temporary directory, rerank each collection with it, write a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("collections", nargs="+", help="CANDIDATES.jsonl:QRELS")
    options = parser.parse_args()
    for name, recipe in VARIANTS.items():
        cells = [name]
        with tempfile.TemporaryDirectory() as folder:
            precision = "fp32" if recipe is None else "int8"
            made = ExportOptions(layout="cross-bias", precision=precision, recipe=recipe or Recipe())
            export_model(options.source, Path(folder) / "model", made)
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            cells.append(f"{size / 1e6:.1f}")
            scorer = load_scorer(str(Path(folder) / "model"))
            for collection in options.collections:
                candidates, qrels = map(Path, collection.split(":"))
                run, speed = rerank(scorer, candidates)
                measured = evaluate(read_qrels(qrels), run, [MEASURE])
                cells += [f"{measured.overall[MEASURE]:.4f}", f"{speed:.0f}"]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
