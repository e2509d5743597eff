"""Separate outlier channels before int8 quantisation: multiply them in fp32, so that the others stay precise in int8.

An activation tensor is quantised with a single scale. In BERT's states, a handful of channels (columns) have values ten
times as large as the others, and they are the same channels for every text. With a single scale, the other channels
would use only a few of the 255 steps of int8. The outlier channels are therefore multiplied in fp32, and the others in
int8 (Dettmers, Lewis, Belkada, Zettlemoyer: LLM.int8(), 2022, arXiv:2208.07339, section 3.2). The paper detects outlier
channels anew in each input, but the export detects them once, on sample sequences.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.scoring.inputs import Tokens, pad

SUFFIX = ".outliers"
"""The outlier channels of a matrix product ``NAME`` are multiplied by the product ``NAME.outliers``.

`osrerank.scoring.backends.networks.onnx_weights` reads its constants: ``NAME.outliers.places``, the indices of the
channels, and ``NAME.outliers.weight``.
"""
MIN_WEIGHTS = 1024
"""Products by a matrix with fewer weights are not split."""

ChannelMaxima = npt.NDArray[np.float32]
"""The largest magnitude of each channel ``(channels,)``."""


def separate_outliers(model: Any, sequences: Iterable[Tokens], max_channels: int, min_gain: float) -> None:
    """Split matrix products into one product for the outlier channels and one for the other channels.

    The fp32 ``onnx.ModelProto`` is changed in place. Its output stays the same, up to rounding.

    Args:
        model: a model whose inputs are fields of `osrerank.scoring.inputs.PaddedBatch`.
        sequences: sample sequences, whose largest activations show which channels are outliers.
        max_channels: the number of channels of a product that can be outliers; see `outlier_channels`.
        min_gain: how many times as large as the other channels an outlier channel must be; see `outlier_channels`.
    """
    onnx = require("onnx", extra="onnx")
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in matrix_products(model) if np.prod(weights[node.input[1]].dims) >= MIN_WEIGHTS]
    maxima = record_maxima(model, [node.input[0] for node in products], sequences)
    nodes = []
    for node in model.graph.node:
        channels = []
        if node in products:
            channels = outlier_channels(maxima[node.input[0]], max_channels, min_gain)
        if not channels:
            nodes.append(node)
            continue
        weight = onnx.numpy_helper.to_array(weights[node.input[1]])
        mask = np.ones(len(weight), dtype=np.float32)
        mask[channels] = 0
        constants = {"places": np.array(channels), "weight": weight[channels], "mask": mask}
        for name, array in constants.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"{node.name}{SUFFIX}.{name}"))
        nodes += _split_product(onnx.helper.make_node, node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def record_maxima(model: Any, names: Sequence[str], sequences: Iterable[Tokens]) -> Mapping[str, ChannelMaxima]:
    """Run an ``onnx.ModelProto`` on the sequences, and return the channel maxima of the values with these names."""
    maxima: dict[str, ChannelMaxima] = {}
    for values in _record_values(model, names, sequences):
        for name, value in values.items():
            magnitudes = np.abs(value).max(axis=tuple(range(value.ndim - 1)))
            maxima[name] = np.maximum(maxima.get(name, magnitudes), magnitudes)
    return maxima


def _record_values(
    model: Any, names: Sequence[str], sequences: Iterable[Tokens]
) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """Yield, for each sequence, the values in the graph that have these names."""
    onnx = require("onnx", extra="onnx")
    runtime: Any = require("onnxruntime", extra="onnx")
    outputs = list(dict.fromkeys(names))
    if not outputs:  # without names, ONNX Runtime would return the graph's own outputs
        return
    probe = copy.deepcopy(model)
    probe.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs
    )
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = runtime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]
    for tokens in sequences:
        batch = pad([tokens])
        values = session.run(outputs, {name: getattr(batch, name) for name in inputs})
        yield dict(zip(outputs, values, strict=True))


def matrix_products(model: Any) -> list[Any]:
    """Return the nodes that multiply by a constant matrix, without those that multiply outlier channels."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    return [
        node
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and not node.name.endswith(SUFFIX)
    ]


def outlier_channels(maxima: ChannelMaxima, max_channels: int, min_gain: float) -> list[int]:
    """Return the indices of the ``max_channels`` largest channels, or an empty list if they are not outliers.

    They are outliers if the largest of them is at least ``min_gain`` times as large as the largest other channel. With
    the maxima ``[1, 9, 1, 2]``, one channel and the gain 1.25, the result is ``[1]``, because 9 >= 1.25 * 2.
    """
    order = np.argsort(-maxima, kind="stable")
    if max_channels < 1 or len(order) <= max_channels:
        return []
    if maxima[order[0]] < min_gain * maxima[order[max_channels]]:
        return []
    return sorted(int(channel) for channel in order[:max_channels])


def _split_product(make_node: Any, node: Any) -> list[Any]:
    """Return the nodes that replace a product: one for the outlier channels, one for the others, and their sum."""
    states, weight = node.input
    name = f"{node.name}{SUFFIX}"
    return [
        make_node("Mul", [states, f"{name}.mask"], [f"{name}.masked_states"], name=f"{name}.mask_states"),
        make_node("Gather", [states, f"{name}.places"], [f"{name}.states"], name=f"{name}.gather_states", axis=-1),
        make_node("MatMul", [f"{name}.masked_states", weight], [f"{name}.masked_product"], name=node.name),
        make_node("MatMul", [f"{name}.states", f"{name}.weight"], [f"{name}.product"], name=name),
        make_node("Add", [f"{name}.masked_product", f"{name}.product"], [node.output[0]], name=f"{name}.sum"),
    ]
