"""The tiny late-interaction models that sentence-transformers and PyLate saved, and what these libraries compute."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SAVED = Path(__file__).parent / "data" / "late-interaction"
NAMES = ("expanded", "unexpanded", "pooled", "modern", "pylate", "stanford")
"""Filled with unseen [MASK] to a fixed length; not filled, cut at 12; filled with seen ones to at least 8, documents
pooled by 2, two projections with what they add to, prefixes of text; a ModernBERT, filled like the first; PyLate's; in
Stanford's form, read by PyLate."""
TEXTS = json.loads((SAVED / "texts.json").read_text("utf-8"))
QUERIES, DOCUMENTS = TEXTS["queries"], TEXTS["documents"]


def exported(name: str, folder: Path, **options: Any) -> Path:
    """Export a saved model, by default in fp32 and with its weights."""
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from osrerank.export.export_model import ExportOptions, export_model

    export_model(
        SAVED / name, folder / Path(name).name, ExportOptions(**{"precision": "fp32", "keep_weights": True, **options})
    )
    return folder / Path(name).name


def computed(name: str) -> dict[str, np.ndarray]:
    """Return what the library computed: ``query0`` and so on, ``document0``, ``pooled0``, ``scores``."""
    with np.load(SAVED / f"{name}.npz") as file:
        return dict(file)


def in_order(rows: np.ndarray) -> np.ndarray:
    """Return vectors in an order of their own: clusters have none."""
    return rows[np.lexsort(np.round(rows, 3).T)]
