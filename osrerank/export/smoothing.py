"""Smooth outlier channels before int8 quantisation: divide a matrix product's inputs, and multiply its weights.

Each input channel (column) j is divided by a scale, and row j of the weights is multiplied by the same scale, so that
the product stays the same in fp32. The scale is max|x_j|^a / max|w_j|^(1 - a) (Xiao, Lin, Seznec, Wu, Demouth, Han:
SmoothQuant, 2023, arXiv:2211.10438, equation 4). Smoothing adds only one multiplication of the input, which is faster
than the second matrix product that `osrerank.export.outliers` adds.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.export.outliers import MIN_WEIGHTS, matrix_products, outlier_channels, record_maxima
from osrerank.scoring.inputs import Tokens

MIGRATION_STRENGTH = 0.7
"""SmoothQuant's exponent a. With 0.7, the error is lowest (docs/research/inference.md)."""
MIN_SCALE = 0.25
"""The smallest scale, if the median scale is 1. A smaller one would enlarge the values of small channels too much."""
SUFFIX = ".smooth"
"""The suffix of a smoothed value's name. `onnx_weights` reads the constants ``NAME.smooth.factor``, 1 / scale."""

Floats = npt.NDArray[np.float32]


def smooth(model: Any, sequences: Iterable[Tokens], max_channels: int, min_gain: float) -> None:
    """Smooth the inputs of matrix products that have outlier channels.

    The fp32 ``onnx.ModelProto`` is changed in place. Its output stays the same, up to rounding. Products with the same
    input use the same scales.

    Args:
        model: a model whose inputs are fields of `osrerank.scoring.inputs.PaddedBatch`.
        sequences: sample sequences, whose largest activations determine the scales.
        max_channels: `QuantisationRecipe.max_outliers`, the maximum number of outlier channels of an input.
        min_gain: `QuantisationRecipe.min_outlier_gain`.
    """
    onnx = require("onnx", extra="onnx")
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    use_counts = Counter(name for node in model.graph.node for name in node.input)
    products = [
        node
        for node in matrix_products(model)
        if np.prod(weights[_weights_name(node)].dims) >= MIN_WEIGHTS and use_counts[_weights_name(node)] == 1
    ]
    maxima = record_maxima(model, [_input_name(node) for node in products], sequences)
    smoothing_nodes: dict[str, Any] = {}
    for input_name, group in groupby(sorted(products, key=_input_name), key=_input_name):
        if not outlier_channels(maxima[input_name], max_channels, min_gain):
            continue
        nodes = list(group)
        matrices = [onnx.numpy_helper.to_array(weights[_weights_name(node)]) for node in nodes]
        weight_maxima = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
        scales = channel_scales(maxima[input_name], weight_maxima)
        smoothed = f"{input_name}{SUFFIX}"
        factor = onnx.numpy_helper.from_array(1 / scales, f"{smoothed}.factor")
        model.graph.initializer.append(factor)
        smoothing_nodes[input_name] = onnx.helper.make_node("Mul", [input_name, factor.name], [smoothed], smoothed)
        for node, matrix in zip(nodes, matrices, strict=True):
            name = _weights_name(node)
            weights[name].CopyFrom(onnx.numpy_helper.from_array(matrix * scales[:, None], name))
            node.input[0] = smoothed
    _insert(model.graph, smoothing_nodes)


def channel_scales(input_maxima: Floats, weight_maxima: Floats) -> Floats:
    """Return each channel's scale from the largest magnitudes of its inputs and weights. The median scale is 1."""
    tiny = np.finfo(np.float32).tiny
    scales = np.maximum(input_maxima, tiny) ** MIGRATION_STRENGTH
    scales /= np.maximum(weight_maxima, tiny) ** (1 - MIGRATION_STRENGTH)
    median = float(np.median(scales)) or 1.0
    return np.maximum(scales / median, MIN_SCALE).astype(np.float32)


def _input_name(product: Any) -> str:
    return str(product.input[0])


def _weights_name(product: Any) -> str:
    return str(product.input[1])


def _insert(graph: Any, smoothing_nodes: dict[str, Any]) -> None:
    """Insert each smoothing node before the first node that uses its input or output. The keys are their inputs."""
    nodes: list[Any] = []
    for node in graph.node:
        for name in node.input:
            original_name = name.removesuffix(SUFFIX)
            if original_name in smoothing_nodes:
                nodes.append(smoothing_nodes.pop(original_name))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
