"""Move the spread of a product's activations into its weights, so that int8 has more steps for most channels.

Each channel of the input is divided by a scale and its weights are multiplied by it, which changes nothing in fp32.
Xiao, Lin, Seznec, Wu, Demouth, Han: SmoothQuant, 2023, arXiv:2211.10438, equation 4: channel j is divided by
max|x_j|^a / max|w_j|^(1 - a). One multiplication for each input of a product takes the place of the second product that
`osrerank.export.outliers` makes.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.export.outliers import MIN_WEIGHTS, largest_activations, products_of, stands_out
from osrerank.scoring.inputs import Tokens

SHARE = 0.7
"""The share of the spread that moves into the weights; 0.7 has the lowest error (docs/research/inference.md)."""
MIN_SCALE = 0.25
"""The minimum scale, relative to the median. It keeps channels that were small for all sequences small."""
SUFFIX = ".smooth"

Floats = npt.NDArray[np.float32]


def smooth(model: Any, sequences: Iterable[Tokens], channels: int, min_gain: float) -> None:
    """Smooth the inputs of matrix products of an fp32 ``onnx.ModelProto``, in place.

    The output stays the same, up to rounding. Products that share an input share its scales. Products without outlying
    channels stay unchanged.

    Args:
        model: a model whose inputs are fields of `osrerank.scoring.inputs.PaddedBatch`.
        sequences: sequences whose largest activations determine the scales.
        channels: maximum number of outlier channels.
        min_gain: minimum ratio of the largest channel to the largest one that is not an outlier.
    """
    onnx = require("onnx", extra="onnx")
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = [name for node in model.graph.node for name in node.input]
    products = [node for node in products_of(model) if np.prod(weights[node.input[1]].dims) >= MIN_WEIGHTS]
    products = [node for node in products if readers.count(node.input[1]) == 1]
    largest = largest_activations(model, [node.input[0] for node in products], sequences)
    factors: dict[str, Any] = {}
    for states, group in groupby(sorted(products, key=_states), key=_states):
        nodes = list(group)
        if not stands_out(largest[states], channels, min_gain):
            continue
        matrices = [onnx.numpy_helper.to_array(weights[node.input[1]]) for node in nodes]
        scales = channel_scales(largest[states], np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0))
        factor = onnx.numpy_helper.from_array(1 / scales, f"{states}{SUFFIX}.factor")
        model.graph.initializer.append(factor)
        factors[states] = onnx.helper.make_node(
            "Mul", [states, factor.name], [f"{states}{SUFFIX}"], f"{states}{SUFFIX}"
        )
        for node, matrix in zip(nodes, matrices, strict=True):
            weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(matrix * scales[:, None], node.input[1]))
            node.input[0] = f"{states}{SUFFIX}"
    _insert(model.graph, factors)


def channel_scales(activations: Floats, weights: Floats) -> Floats:
    """Return the scale by which each channel is divided, float32 ``(channels,)``; the median is 1.

    Args:
        activations: largest magnitude of each channel.
        weights: largest magnitude of each channel's weights.
    """
    tiny = np.finfo(np.float32).tiny
    scales = np.maximum(activations, tiny) ** SHARE / np.maximum(weights, tiny) ** (1 - SHARE)
    middle = float(np.median(scales)) or 1.0
    return np.maximum(scales / middle, MIN_SCALE).astype(np.float32)


def _states(product: Any) -> str:
    return str(product.input[0])


def _insert(graph: Any, factors: dict[str, Any]) -> None:
    """Insert each new node before the first node that reads its input or its output."""
    nodes: list[Any] = []
    for node in graph.node:
        inputs = [name.removesuffix(SUFFIX) for name in node.input]
        nodes += [factors.pop(name) for name in inputs if name in factors]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
