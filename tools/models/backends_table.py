"""Export a random checkpoint of each family and compare the backends with transformers, as a Markdown table.

python -m tools.models.backends_table --shape minilm-l6 --queries 5 --threads 2

`families` describes the checkpoints. The columns are the standard deviation of the logits within a query, the largest
differences from transformers' logits, the mean overlap of the first ten documents by int8 and by transformers, and
pairs per second.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from osrerank._platform import usable_cores
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.checkpoints.self_check import examples
from osrerank.scoring.registry import load_scorer
from osrerank.types import Scorer
from osrerank.types.scores import single_documents
from tools.bench.race import FloatArray, top_overlap
from tools.models.families import FAMILIES, SHAPES, Text, load, logit, make, sequences

MAX_CHARACTERS = 500
"""The maximum length of a document, about a hundred tokens."""
COLUMNS = ("fp32", "int8", "torch")


class BackendFigures(NamedTuple):
    """The measurements of a backend.

    Attributes:
        difference: the largest difference from transformers' logits.
        overlap: the mean share of transformers' first ten documents among the backend's first ten.
        pairs_per_s: the number of pairs per second of wall time.
    """

    difference: float
    overlap: float
    pairs_per_s: float


def load_backends(checkpoint: Path, folder: Path, threads: int) -> Iterator[tuple[str, Scorer]]:
    """Yield the name and the scorer of each of `COLUMNS`."""
    for precision in ("fp32", "int8"):
        export_model(checkpoint, folder / precision, ExportOptions(precision=precision))
        yield precision, load_scorer(str(folder / precision), backend="onnx", threads=threads)
    yield "torch", load_scorer(str(checkpoint), backend="torch", threads=threads)


def compare(scorer: Scorer, tasks: Mapping[str, Sequence[str]], expected: Sequence[FloatArray]) -> BackendFigures:
    """Score the documents of each query after a warm-up, and compare the logits with the expected ones."""
    first_query, documents = next(iter(tasks.items()))
    scorer.score(first_query, documents[:2], [(0,), (1,)])
    start_s = time.perf_counter()
    logits = [scorer.score(query, texts, single_documents(len(texts))).values for query, texts in tasks.items()]
    took_s = time.perf_counter() - start_s
    pairs = zip(logits, expected, strict=True)
    difference = max(float(np.abs(values - reference_values).max()) for values, reference_values in pairs)
    return BackendFigures(difference, top_overlap(logits, expected), sum(map(len, logits)) / took_s)


def measure(
    name: str, shape: str, tasks: Mapping[str, Sequence[str]], threads: int
) -> tuple[float, dict[str, BackendFigures]]:
    """Return the standard deviation of a family's logits within a query, and the measurements of each backend."""
    with tempfile.TemporaryDirectory() as folder:
        examples: list[Text] = [(query, text) for query, texts in tasks.items() for text in texts[::4]]
        checkpoint = make(Path(folder) / "checkpoint", FAMILIES[name], SHAPES[shape], examples)
        network = load(checkpoint)
        expected = [
            np.array([logit(network, tokens) for tokens in sequences(checkpoint, [(query, text) for text in texts])])
            for query, texts in tasks.items()
        ]
        figures = {}
        for column, scorer in load_backends(checkpoint, Path(folder), threads):
            with closing(scorer):
                figures[column] = compare(scorer, tasks, expected)
        return float(np.mean([values.std() for values in expected])), figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--shape", default="minilm-l6", choices=list(SHAPES))
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--depth", type=int, default=40)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    all_examples = examples()
    texts = [example.answer[:MAX_CHARACTERS] for example in all_examples][: options.depth]
    tasks = {example.question: texts for example in all_examples[: options.queries]}
    sys.stdout.write(
        "| | sd | fp32 | int8 | int8 top 10 | torch | pairs/s: fp32, int8, torch |\n|---|---|---|---|---|---|---|\n"
    )
    for name in options.families:
        logits_sd, figures = measure(name, options.shape, tasks, options.threads)
        fp32, int8, in_torch = (figures[column] for column in COLUMNS)
        speeds = ", ".join(f"{item.pairs_per_s:.0f}" for item in (fp32, int8, in_torch))
        differences = f"{fp32.difference:.0e} | {int8.difference:.2f} | {int8.overlap:.2f} | {in_torch.difference:.0e}"
        sys.stdout.write(f"| {name} | {logits_sd:.1f} | {differences} | {speeds} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
