"""Print a table of the differences between our vectors and sentence-transformers', for `tests/data/encoders`.

python -m tools.models.encoder_parity
"""

import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.registry import load_model
from osrerank.types import Encoder, is_encoder
from tools.models.encoders import TEXTS, read_forms, restore_checkpoint

SAVED = Path(__file__).parents[2] / "tests" / "data" / "encoders"
VARIANTS = {"torch": ("fp32", "torch"), "onnx": ("fp32", "onnx"), "int8": ("int8", "onnx")}
"""The name of a column -> the precision of the graph, and the backend."""

Rows = npt.NDArray[np.float32]
Sides = Mapping[str, Rows]
"""``query`` or ``document`` -> the vectors of `TEXTS` as such."""


def compute_vectors(checkpoint: Path, variant: str) -> Sides:
    """Export a checkpoint to a directory beside it, unless it exists, and encode `TEXTS`."""
    precision, backend = VARIANTS[variant]
    directory = checkpoint.with_name(f"{checkpoint.name}-{precision}")
    if not directory.exists():
        export_model(checkpoint, directory, ExportOptions(precision=precision, keep_weights=True))
    model = load_model(str(directory), backend=backend, threads=1)
    assert is_encoder(model)
    with closing(model):
        return {"query": _encode(model, "query"), "document": _encode(model, "document")}


def _encode(model: Encoder, side: Any) -> Rows:
    rows: Rows = model.encode(TEXTS, side).rows
    return rows


def max_difference(vectors: Sides, expected: Sides) -> float:
    """Return the largest absolute difference of an element, over both sides and all texts."""
    return max(float(np.abs(vectors[side] - expected[side]).max()) for side in expected)


def min_cosine(vectors: Sides, expected: Sides) -> float:
    """Return the minimum cosine of a vector and the expected one."""
    minima = []
    for side, rows in expected.items():
        norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(vectors[side], axis=1)
        minima.append(float(((rows * vectors[side]).sum(axis=1) / norms).min()))
    return min(minima)


def main() -> None:
    """Print the table, with the worst value of all versions in each cell."""
    versions = {file.stem.rpartition("-")[2]: read_forms(file) for file in sorted(SAVED.glob("*.json"))}
    print(f"| saved by {' and '.join(versions)} | torch, fp32 | ONNX, fp32 | ONNX, int8: minimum cosine |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as parent:
        for number, name in enumerate(next(iter(versions.values()))):
            rows = []
            for version, forms in versions.items():
                expected = forms[name]["vectors"]
                checkpoint = restore_checkpoint(forms[name], Path(parent) / version / str(number))
                exact = [max_difference(compute_vectors(checkpoint, key), expected) for key in ("torch", "onnx")]
                rows.append((*exact, min_cosine(compute_vectors(checkpoint, "int8"), expected)))
            torch, onnx, cosines = zip(*rows, strict=True)
            print(f"| {name} | {max(torch):.1e} | {max(onnx):.1e} | {min(cosines):.4f} |")


if __name__ == "__main__":
    main()
