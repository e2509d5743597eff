"""Export a random checkpoint of each family and compare the backends with transformers, as a Markdown table.

python -m tools.models.backends_table --shape minilm-l6 --queries 5 --threads 2

`families` says how the checkpoints are drawn. The columns: the logits' standard deviation within a query; the largest
difference from transformers' logits; the mean share of transformers' first ten that int8 has in its first ten; pairs a
second.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from osrerank._platform import usable_cores
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.checkpoints.self_check import examples
from osrerank.scoring.registry import load_scorer
from osrerank.types import Scorer
from tools.models.families import FAMILIES, SHAPES, Text, load, logit, make, sequences

TOP = 10
CHARACTERS = 500
"""Of a document: about a hundred tokens."""
COLUMNS = ("fp32", "int8", "torch")
Values = npt.NDArray[np.floating[Any]]


class BackendFigures(NamedTuple):
    """What a backend made of the pairs.

    Attributes:
        difference: the largest from transformers' logits.
        shared: mean share of the first ten, of the queries.
        pairs_per_s: by wall-clock time.
    """

    difference: float
    shared: float
    pairs_per_s: float


def backends(checkpoint: Path, folder: Path, threads: int) -> Iterator[tuple[str, Scorer]]:
    """Yield each of `COLUMNS` with its scorer; int8 and fp32 as ``osrerank export`` makes them."""
    for precision in ("fp32", "int8"):
        export_model(checkpoint, folder / precision, ExportOptions(precision=precision))
        yield precision, load_scorer(str(folder / precision), backend="onnx", threads=threads)
    yield "torch", load_scorer(str(checkpoint), backend="torch", threads=threads)


def compare(scorer: Scorer, tasks: Mapping[str, Sequence[str]], expected: Sequence[Values]) -> BackendFigures:
    """Score the documents of each query, after a first call that does not count."""
    first, documents = next(iter(tasks.items()))
    scorer.score(first, documents[:2], [(0,), (1,)])
    began = time.perf_counter()
    found = [scorer.score(query, texts, [(at,) for at in range(len(texts))]).values for query, texts in tasks.items()]
    taken_s = time.perf_counter() - began
    shared = [len(_top(own) & _top(other)) / TOP for own, other in zip(found, expected, strict=True)]
    difference = max(float(np.abs(own - other).max()) for own, other in zip(found, expected, strict=True))
    return BackendFigures(difference, float(np.mean(shared)), sum(map(len, found)) / taken_s)


def measure(
    name: str, shape: str, tasks: Mapping[str, Sequence[str]], threads: int
) -> tuple[float, dict[str, BackendFigures]]:
    """Return the standard deviation of a family's logits within a query, and what each backend found."""
    with tempfile.TemporaryDirectory() as folder:
        head: list[Text] = [(query, text) for query, texts in tasks.items() for text in texts[::4]]
        checkpoint = make(Path(folder) / "checkpoint", FAMILIES[name], SHAPES[shape], head)
        network = load(checkpoint)
        expected = [
            np.array([logit(network, tokens) for tokens in sequences(checkpoint, [(query, text) for text in texts])])
            for query, texts in tasks.items()
        ]
        found = {}
        for column, scorer in backends(checkpoint, Path(folder), threads):
            with closing(scorer):
                found[column] = compare(scorer, tasks, expected)
        return float(np.mean([values.std() for values in expected])), found


def main() -> None:
    """Print the table's rows as they are found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--shape", default="minilm-l6", choices=list(SHAPES))
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--depth", type=int, default=40)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = examples()
    texts = [example.answer[:CHARACTERS] for example in given][: options.depth]
    tasks = {example.question: texts for example in given[: options.queries]}
    sys.stdout.write(
        "| | sd | fp32 | int8 | int8 top 10 | torch | pairs/s: fp32, int8, torch |\n|---|---|---|---|---|---|---|\n"
    )
    for name in options.families:
        spread, found = measure(name, options.shape, tasks, options.threads)
        fp32, int8, reference = (found[column] for column in COLUMNS)
        speeds = ", ".join(f"{one.pairs_per_s:.0f}" for one in (fp32, int8, reference))
        differences = f"{fp32.difference:.0e} | {int8.difference:.2f} | {int8.shared:.2f} | {reference.difference:.0e}"
        sys.stdout.write(f"| {name} | {spread:.1f} | {differences} | {speeds} |\n")
        sys.stdout.flush()


def _top(values: Values) -> set[int]:
    return set(np.argsort(-values, kind="stable")[:TOP].tolist())


if __name__ == "__main__":
    main()
