"""Families whose graphs optimum exports."""

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import MissingDependencyError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.modular.description import FAMILIES, GRAPH_FAMILIES
from osrerank.scoring.registry import load_model
from osrerank.types import is_encoder
from tools.models.parity import MAX_DIFFERENCE, compare
from tools.models.saved_forms import DOCUMENTS, Form, save_bi_encoder

pytest.importorskip("optimum")
pytest.importorskip("sentence_transformers")
OTHERS = [family for family in FAMILIES if family not in GRAPH_FAMILIES]


def vectors(directory: Path) -> np.ndarray:
    with closing(load_model(str(directory), backend="onnx", threads=1)) as model:
        assert is_encoder(model)
        return model.encode(list(DOCUMENTS), "document").rows


@pytest.mark.long
@pytest.mark.parametrize("family", OTHERS)
def test_bi_encoders_exported_by_optimum_are_exact_in_fp32_and_near_in_int8(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    scores = save_bi_encoder(Form(family, family, "mean"), folder)
    difference = compare(folder, {"scores": scores, "pooling": "mean"})
    assert isinstance(difference, float), difference
    assert difference < MAX_DIFFERENCE
    export_model(folder, tmp_path / "int8")
    exact, near = vectors(tmp_path / "saved-made"), vectors(tmp_path / "int8")
    assert (exact * near).sum(axis=1).min() > 0.99


def test_without_optimum_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "saved"
    save_bi_encoder(Form("distilbert", "distilbert", "mean"), folder)
    monkeypatch.setitem(sys.modules, "optimum.exporters.onnx", None)
    with pytest.raises(MissingDependencyError, match=r"osrerank\[onnx\]"):
        export_model(folder, tmp_path / "made", ExportOptions(precision="fp32"))
    assert not (tmp_path / "made").exists()
