"""Two products of activations and weights fit into the 16 bits in which CPUs without VNNI add them up."""

from pathlib import Path

import numpy as np
import onnx
import pytest

MODELS = Path(__file__).parents[3] / "osrerank" / "models"
LARGEST_ACTIVATION, LARGEST_SUM = 255, 32_767
"""Activations have 8 bits without a sign; AVX2's vpmaddubsw adds two products and saturates."""
PRODUCTS = {"MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}


@pytest.mark.parametrize("file", sorted(MODELS.rglob("model_int8.onnx")), ids=lambda file: file.parts[-3])
def test_weights_of_the_shipped_models_cannot_saturate(file: Path) -> None:
    graph = onnx.load(file).graph
    arrays = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    read = [name for node in graph.node if node.op_type in PRODUCTS for name in node.input if name in arrays]
    weights = [onnx.numpy_helper.to_array(arrays[name]).astype(np.int64) for name in read]
    assert weights
    for weight in (weight for weight in weights if weight.ndim == 2):
        pairs = np.abs(weight[:-1:2]) + np.abs(weight[1::2])
        assert LARGEST_ACTIVATION * pairs.max() <= LARGEST_SUM
