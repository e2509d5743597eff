"""How far our vectors are from sentence-transformers', for each bi-encoder in `tests/data/encoders`, as a table.

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
from tools.models.encoders import TEXTS, read, restored

SAVED = Path(__file__).parents[2] / "tests" / "data" / "encoders"
WAYS = {"torch": ("fp32", "torch"), "onnx": ("fp32", "onnx"), "int8": ("int8", "onnx")}
"""Name of a column -> precision of the graph, backend."""

Rows = npt.NDArray[np.float32]
Sides = Mapping[str, Rows]


def vectors(checkpoint: Path, way: str) -> Sides:
    """Export a checkpoint beside it, once, and return our vectors of `TEXTS` for each side."""
    precision, backend = WAYS[way]
    made = checkpoint.with_name(f"{checkpoint.name}-{precision}")
    if not made.exists():
        export_model(checkpoint, made, ExportOptions(precision=precision, keep_weights=True))
    model = load_model(str(made), backend=backend, threads=1)
    assert is_encoder(model)
    with closing(model):
        return {side: _encoded(model, side) for side in ("query", "document")}


def _encoded(model: Encoder, side: Any) -> Rows:
    rows: Rows = model.encode(TEXTS, side).rows
    return rows


def furthest(ours: Sides, theirs: Sides) -> float:
    """Return the largest difference of a number, over both sides and all texts."""
    return max(float(np.abs(ours[side] - theirs[side]).max()) for side in theirs)


def min_cosine(ours: Sides, theirs: Sides) -> float:
    """Return the least cosine of our vector of a text and theirs."""
    found = []
    for side, rows in theirs.items():
        norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(ours[side], axis=1)
        found.append(float(((rows * ours[side]).sum(axis=1) / norms).min()))
    return min(found)


def main() -> None:
    """Print the table; of the versions, the largest differences and the least cosine."""
    versions = {file.stem.rpartition("-")[2]: read(file) for file in sorted(SAVED.glob("*.json"))}
    print(f"| saved by {' and '.join(versions)} | torch, fp32 | ONNX, fp32 | ONNX, int8: least cosine |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as parent:
        for number, name in enumerate(next(iter(versions.values()))):
            found = []
            for version, forms in versions.items():
                checkpoint, theirs = restored(forms[name], Path(parent) / version / str(number)), forms[name]["vectors"]
                exact = [furthest(vectors(checkpoint, way), theirs) for way in ("torch", "onnx")]
                found.append((*exact, min_cosine(vectors(checkpoint, "int8"), theirs)))
            torch, onnx, cosines = zip(*found, strict=True)
            print(f"| {name} | {max(torch):.1e} | {max(onnx):.1e} | {min(cosines):.4f} |")


if __name__ == "__main__":
    main()
