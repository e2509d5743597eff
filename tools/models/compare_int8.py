"""Compare ways to quantise a bi-encoder in the layout ``cross-bias``: size, quality and speed, as a Markdown table.

python tools/models/compare_int8.py all-MiniLM-L6-v2 dl19.jsonl:qrels.full.txt squad.jsonl:squad.qrels
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from osrerank.evaluation.measures import evaluate
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.export.quantise import Recipe
from osrerank.formats.candidates import read_candidates
from osrerank.formats.trec import read_qrels
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.registry import load_scorer
from osrerank.types import Run, ScoredDocument

MEASURE = "nDCG@10"
SPEED_QUERIES = 5
CHANNELS = Recipe(reduce_range=False)
VARIANTS = {
    "per channel, 7 bits (shipped)": Recipe(),
    "per channel": CHANNELS,
    "one scale a matrix": replace(CHANNELS, per_channel=False),
    "one scale a matrix, one for all words": replace(CHANNELS, per_channel=False, embeddings="table"),
    "per channel, unsigned weights": replace(CHANNELS, weights="uint8"),
    "per channel, 7 bits, narrowing matrices in fp32": Recipe(keep_fp32=("narrow",)),
    "fp32": None,
}


def read(candidates: Path) -> list[tuple[str, str, list[str], list[str]]]:
    """Return each line's query id, query, doc ids and texts."""
    return [
        (
            one.query.query_id,
            one.query.text,
            [document["id"] for document in one.documents],
            [f"{document.get('title', '')} {document['text']}".strip() for document in one.documents],
        )
        for one in read_candidates(candidates)
    ]


def quality(scorer: LocalScorer, candidates: Path, qrels: Path) -> float:
    """Return the measure of the candidates in the scorer's order."""
    rankings = {}
    for query_id, query, doc_ids, texts in read(candidates):
        values = scorer.score(query, texts, [(index,) for index in range(len(texts))]).values
        scored = [ScoredDocument(doc_id, value) for doc_id, value in zip(doc_ids, values.tolist(), strict=True)]
        rankings[query_id] = tuple(sorted(scored, key=lambda document: -document.score))
    return evaluate(read_qrels(qrels), Run(rankings), [MEASURE]).overall[MEASURE]


def speeds(scorers: dict[str, LocalScorer], candidates: Path) -> dict[str, float]:
    """Return pairs a second, the median over queries; scorers take turns, so a busy machine is busy for all."""
    found: dict[str, list[float]] = {name: [] for name in scorers}
    for _query_id, query, _doc_ids, texts in read(candidates)[:SPEED_QUERIES]:
        for name, scorer in scorers.items():
            started = time.perf_counter()
            scorer.score(query, texts, [(index,) for index in range(len(texts))])
            found[name].append(len(texts) / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in found.items()}


def export(source: Path, folder: Path) -> dict[str, LocalScorer]:
    """Write each variant's model directory and load it."""
    scorers = {}
    for index, (name, recipe) in enumerate(VARIANTS.items()):
        precision = "fp32" if recipe is None else "int8"
        made = ExportOptions(layout="cross-bias", precision=precision, recipe=recipe or Recipe())
        export_model(source, folder / str(index), made)
        scorers[name] = load_scorer(str(folder / str(index)))
    return scorers


def main() -> None:
    """Export the variants into a temporary directory, time them in turns, measure each on each collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("collections", nargs="+", help="CANDIDATES.jsonl:QRELS; the first one is timed")
    options = parser.parse_args()
    collections = [tuple(map(Path, collection.split(":"))) for collection in options.collections]
    with tempfile.TemporaryDirectory() as folder:
        scorers = export(options.source, Path(folder))
        timed = speeds(scorers, collections[0][0])
        for index, (name, scorer) in enumerate(scorers.items()):
            size = sum(file.stat().st_size for file in (Path(folder) / str(index)).rglob("*") if file.is_file())
            measured = [f"{quality(scorer, candidates, qrels):.4f}" for candidates, qrels in collections]
            cells = [name, f"{size / 1e6:.1f}", f"{timed[name] / timed['fp32']:.2f}", f"{timed[name]:.0f}", *measured]
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
