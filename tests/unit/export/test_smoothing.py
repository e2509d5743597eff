"""Smoothing of activations before int8: scales of the paper, unchanged output, smaller errors."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from osrerank.export.quantise import QuantisationRecipe, quantise
from osrerank.export.smoothing import MIN_SCALE, channel_scales, smooth
from osrerank.scoring.inputs import Tokens
from tests.unit.export.graphs import of_words

WIDTH, LARGE = 48, 5


def tokens(seed: int) -> Tokens:
    ids = np.random.default_rng(seed).integers(0, 10, size=6)
    return Tokens(ids, np.zeros(6, dtype=np.int64))


def model() -> object:
    """Return two products of one input, one channel of which is far larger than the others, and one of its own."""
    draw, make = np.random.default_rng(1), onnx.helper
    table = draw.normal(size=(10, WIDTH)).astype(np.float32)
    table[:, LARGE] *= 60
    constants = {"table": table, **{name: draw.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in "abc"}}
    nodes = [
        make.make_node("Gather", ["table", "input_ids"], ["states"], "states"),
        make.make_node("MatMul", ["states", "a"], ["first"], "first"),
        make.make_node("MatMul", ["states", "b"], ["second"], "second"),
        make.make_node("Softmax", ["first"], ["even"], "even"),
        make.make_node("MatMul", ["even", "c"], ["third"], "third"),
        make.make_node("Sum", ["states", "second", "third"], ["logits"], "logits"),
    ]
    return of_words(nodes, constants, WIDTH)


def outputs(graph: object, seed: int) -> np.ndarray:
    raw = graph if isinstance(graph, str) else graph.SerializeToString()  # type: ignore[attr-defined]
    return onnxruntime.InferenceSession(raw).run(None, {"input_ids": tokens(seed).ids[None]})[0]


def test_smoothing_scales_are_the_papers_with_a_median_of_one() -> None:
    activations, weights = np.array([1, 16, 1, 1e-9], dtype=np.float32), np.array([1, 1, 1, 1], dtype=np.float32)
    assert channel_scales(activations, weights) == pytest.approx([1, 16**0.7, 1, MIN_SCALE])
    assert channel_scales(np.ones(3, np.float32), np.array([1, 8, 1], np.float32))[1] == pytest.approx(8**-0.3)


def test_smoothing_keeps_the_output_and_multiplies_a_shared_input_once() -> None:
    graph = model()
    smooth(graph, [tokens(seed) for seed in range(4)], 1, 3.0)
    assert len(graph.graph.node) == len(model().graph.node) + 1  # one multiplication, for both products of the input
    assert outputs(graph, 9) == pytest.approx(outputs(model(), 9), rel=1e-4, abs=1e-3)
    graph = model()
    graph.graph.node[2].input[1] = "a"
    smooth(graph, [tokens(0)], 1, 3.0)
    assert len(graph.graph.node) == len(model().graph.node)


def test_smoothing_brings_int8_nearer_to_fp32_than_a_single_scale(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "fp32.onnx")
    errors = {}
    for name, recipe in (("smooth", {"outlier_method": "smooth", "max_outliers": 1}), ("none", {"max_outliers": 0})):
        quantisation_recipe = QuantisationRecipe(min_outlier_gain=3.0, **recipe)  # type: ignore[arg-type]
        quantise(
            tmp_path / "fp32.onnx", tmp_path / f"{name}.onnx", quantisation_recipe, [tokens(seed) for seed in range(4)]
        )
        difference = outputs(str(tmp_path / f"{name}.onnx"), 9) - outputs(model(), 9)
        errors[name] = float(np.sqrt((difference**2).mean()))
    assert errors["smooth"] < errors["none"] / 2
