"""Channels that stand out are multiplied by themselves: the same numbers in fp32, closer ones in int8."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from osrerank.export.outliers import SUFFIX, separate_outliers
from osrerank.export.quantise import QuantisationRecipe, quantise
from osrerank.scoring.inputs import Tokens
from tests.unit.export.graphs import of_words

WIDTH, OUTPUTS, VOCABULARY = 64, 32, 50
LOUD = (3, 40)


def tokens(seed: int) -> Tokens:
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, 12)
    return Tokens(ids, np.zeros_like(ids))


def product(loudness: float) -> onnx.ModelProto:
    """A table of states, two of whose channels are loud, times a matrix."""
    draw = np.random.default_rng(0)
    states = draw.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    states[:, list(LOUD)] *= loudness
    constants = {"table": states, "matrix": draw.normal(size=(WIDTH, OUTPUTS)).astype(np.float32)}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["states"], name="states"),
        helper.make_node("MatMul", ["states", "matrix"], ["logits"], name="product"),
    ]
    return of_words(nodes, constants, OUTPUTS)


def run(model: onnx.ModelProto | Path, one: Tokens) -> np.ndarray:
    content = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(content).run(None, {"input_ids": one.ids[None]})[0]


def test_separating_outlying_channels_keeps_the_graphs_output() -> None:
    model = product(30.0)
    before = run(model, tokens(9))
    separate_outliers(model, [tokens(seed) for seed in range(4)], 2, 1.25)
    onnx.checker.check_model(model)
    np.testing.assert_allclose(run(model, tokens(9)), before, rtol=1e-5, atol=1e-4)
    places = next(tensor for tensor in model.graph.initializer if tensor.name.endswith(f"{SUFFIX}.places"))
    assert numpy_helper.to_array(places).tolist() == list(LOUD)


@pytest.mark.parametrize(("loudness", "channels", "gain"), [(1.0, 2, 1.25), (30.0, 0, 1.25), (30.0, 2, 100.0)])
def test_channels_are_separated_only_if_they_stand_out(loudness: float, channels: int, gain: float) -> None:
    model = product(loudness)
    separate_outliers(model, [tokens(0)], channels, gain)
    assert [node.op_type for node in model.graph.node] == ["Gather", "MatMul"]


def test_separating_outlying_channels_brings_int8_nearer_to_fp32(tmp_path: Path) -> None:
    onnx.save(product(30.0), tmp_path / "fp32.onnx")
    exact = run(tmp_path / "fp32.onnx", tokens(9))
    errors = []
    for outliers in (0, 2):
        target = tmp_path / f"{outliers}.onnx"
        quantise(
            tmp_path / "fp32.onnx",
            target,
            QuantisationRecipe(max_outliers=outliers),
            [tokens(seed) for seed in range(4)],
        )
        errors.append(float(np.abs(run(target, tokens(9)) - exact).mean()))
    assert errors[1] < errors[0] / 5
