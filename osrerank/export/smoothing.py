"""Smooth outlier channels before int8 quantisation: divide a matrix product's inputs, and multiply its weights.

Each input channel j is divided by a scale, and its weights are multiplied by the same scale, which changes nothing in
fp32. The scale is max|x_j|^a / max|w_j|^(1 - a) (Xiao, Lin, Seznec, Wu, Demouth, Han: SmoothQuant, 2023,
arXiv:2211.10438, equation 4). Smoothing adds one multiplication of the input, and is therefore faster than the second
matrix product that `osrerank.export.outliers` adds.
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
"""Smaller scales are raised to this part of the median scale, because they would enlarge small channels too much."""
SUFFIX = ".smooth"
"""The suffix of a smoothed value's name. `onnx_weights` reads the constants ``NAME.smooth.factor``."""

Floats = npt.NDArray[np.float32]


def smooth(model: Any, sequences: Iterable[Tokens], max_channels: int, min_gain: float) -> None:
    """Smooth the inputs of matrix products that have outlier channels.

    The fp32 ``onnx.ModelProto`` is changed in place. Its output stays the same, up to rounding. Products that share an
    input share its scales.

    Args:
        model: a model whose inputs are fields of `osrerank.scoring.inputs.PaddedBatch`.
        sequences: sample sequences, whose largest activations determine the scales.
        max_channels: `QuantisationRecipe.max_outliers`.
        min_gain: `QuantisationRecipe.min_outlier_gain`.
    """
    onnx = require("onnx", extra="onnx")
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    use_counts = Counter(name for node in model.graph.node for name in node.input)
    products = [
        node
        for node in matrix_products(model)
        if np.prod(weights[node.input[1]].dims) >= MIN_WEIGHTS and use_counts[node.input[1]] == 1
    ]
    maxima = record_maxima(model, [node.input[0] for node in products], sequences)
    smoothing_nodes: dict[str, Any] = {}
    for input_name, group in groupby(sorted(products, key=_input_name), key=_input_name):
        if not outlier_channels(maxima[input_name], max_channels, min_gain):
            continue
        nodes = list(group)
        matrices = [onnx.numpy_helper.to_array(weights[node.input[1]]) for node in nodes]
        weight_maxima = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
        scales = channel_scales(maxima[input_name], weight_maxima)
        smoothed = f"{input_name}{SUFFIX}"
        factor = onnx.numpy_helper.from_array(1 / scales, f"{smoothed}.factor")
        model.graph.initializer.append(factor)
        smoothing_nodes[input_name] = onnx.helper.make_node("Mul", [input_name, factor.name], [smoothed], smoothed)
        for node, matrix in zip(nodes, matrices, strict=True):
            weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(matrix * scales[:, None], node.input[1]))
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


def _insert(graph: Any, smoothing_nodes: dict[str, Any]) -> None:
    """Insert the nodes, which are given by their inputs, each before the first node that uses its input or output."""
    nodes: list[Any] = []
    for node in graph.node:
        inputs = [name.removesuffix(SUFFIX) for name in node.input]
        nodes += [smoothing_nodes.pop(name) for name in inputs if name in smoothing_nodes]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
