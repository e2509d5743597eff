"""Weights that are read out of a graph: what went into it comes out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.quantise import QuantisationRecipe
from osrerank.scoring.card_file import list_parameter_files
from osrerank.scoring.locate import SHIPPED
from osrerank.scoring.registry import load_scorer

pytest.importorskip("torch")
pytest.importorskip("onnx")

import onnx as onnx_format
from safetensors.numpy import load_file

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.backends.torch import read_weights

DATA = Path(__file__).parents[4] / "data"
FORMS = ("one-label", "two-labels", "duo", "bi-encoder")
SEGMENTS = "embeddings.token_type_embeddings.weight"
DOCUMENTS = ["low blood pressure", "the wing of the engine", "", "heat " * 60]


def exported(tmp_path: Path, form: str, **changes: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A model without safetensors, and the weights that it was made of."""
    source, directory = DATA / f"tiny-bert-{form}", tmp_path / form
    export_model(source, directory, ExportOptions(kind="duo" if form == "duo" else None, **changes))
    before = load_file(source / "model.safetensors")
    return directory, {name.removeprefix("bert."): array for name, array in before.items()}


def weights_of(directory: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in read_weights(directory).items()}


@pytest.mark.parametrize("form", FORMS)
def test_weights_read_from_an_fp32_graph_are_exact(tmp_path: Path, form: str) -> None:
    directory, before = exported(tmp_path, form)
    assert list_parameter_files(directory) == ["onnx/model.onnx"]
    after = weights_of(directory)
    rows = 1 if form == "bi-encoder" else len(before[SEGMENTS])
    np.testing.assert_array_equal(after[SEGMENTS][:rows], before[SEGMENTS][:rows])
    assert after[SEGMENTS].shape == before[SEGMENTS].shape
    unread = {SEGMENTS} | {name for name in before if form == "bi-encoder" and name.startswith(("pooler.", "cls."))}
    assert set(before) - unread <= set(after)
    for name in set(before) - unread:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("form", ["one-label", "bi-encoder"])
def test_weights_read_from_an_int8_graph_are_within_half_a_step(tmp_path: Path, form: str) -> None:
    directory, before = exported(tmp_path, form, precision="int8", recipe=QuantisationRecipe(outlier_method="separate"))
    after = weights_of(directory)
    quantised = 0
    for name in (name for name in after if name.startswith("encoder.") and after[name].ndim == 2):
        steps = np.abs(before[name]).max(axis=1, keepdims=True) / 63  # 7 bits, a scale for each output
        assert (np.abs(after[name] - before[name]) <= 0.501 * steps).all(), name
        quantised += bool((after[name] != before[name]).any())
    assert quantised
    words = "embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(after[words], before[words])  # a table of so few rows stays fp32


def test_outlying_channels_are_read_exactly_from_a_graph(tmp_path: Path) -> None:
    directory, before = exported(
        tmp_path, "bi-encoder", precision="int8", recipe=QuantisationRecipe(max_outliers=2, min_outlier_gain=1.0)
    )
    name = "encoder.layer.0.intermediate.dense.weight"
    assert (weights_of(directory)[name] == before[name]).all(axis=0).sum() == 2  # of its inputs


@pytest.mark.long
@pytest.mark.parametrize("form", ["one-label", "two-labels", "duo"])
def test_smoothing_is_undone_in_weights_read_from_a_graph(tmp_path: Path, form: str) -> None:
    directory, before = exported(
        tmp_path, form, precision="int8", recipe=QuantisationRecipe(outlier_method="smooth", min_outlier_gain=1.0)
    )
    after = weights_of(directory)
    for name in (name for name in after if name.startswith("encoder.") and after[name].ndim == 2):
        error = np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name])
        assert error < 0.05, name  # a channel's scale would be far more
        if before[name].shape[0] == before[name].shape[1]:
            assert np.linalg.norm(after[name].T - before[name]) > np.linalg.norm(before[name])
    tuples = [(0, 1), (2, 3), (3, 0)] if form == "duo" else [(index,) for index in range(4)]
    onnx, torch = (load_scorer(str(directory), backend=backend) for backend in ("onnx", "torch"))
    values = [scorer.score("low pressure", DOCUMENTS, tuples).values for scorer in (onnx, torch)]
    np.testing.assert_allclose(values[0], values[1], atol=0.15)
    assert np.ptp(values[0]) > 0.15


@pytest.mark.long
@pytest.mark.parametrize("name", ["e5-small", "minilm-l6", "monobert-l6"])
def test_the_shipped_models_run_in_torch(name: str) -> None:
    scorers = [load_scorer(f"osrerank/{name}", backend=backend) for backend in ("onnx", "torch")]
    assert list_parameter_files(SHIPPED / name) == ["onnx/model_int8.onnx"]
    is_encoder = name != "monobert-l6"
    assert (len({scorer.identity for scorer in scorers}) == 1) == is_encoder  # whoever computes a vector
    texts = ["Low blood pressure is caused by dehydration.", "High blood pressure is treated.", "A wing gives lift."]
    query, tuples = "what causes low blood pressure", [(0,), (1,), (2,)]
    onnx, torch = (scorer.score(query, texts, tuples).values for scorer in scorers)
    assert np.argsort(onnx).tolist() == np.argsort(torch).tolist()
    assert np.abs(onnx - torch).max() < 0.1 * np.ptp(torch)


def test_a_graph_with_other_names_of_weights_is_refused_with_the_fix(tmp_path: Path) -> None:
    directory, _ = exported(tmp_path, "one-label")
    file = directory / "onnx" / "model.onnx"
    graph = onnx_format.load(file)
    for tensor in graph.graph.initializer:
        tensor.name = f"traced::{tensor.name}"  # as torch's tracer names them
    onnx_format.save(graph, file)
    with pytest.raises(ModelLoadError, match=r"model\.onnx has no weight .*add the safetensors"):
        load_scorer(str(directory), backend="torch")
