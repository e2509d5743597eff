"""Keep the few channels that are far larger than the rest out of int8, so that they do not widen the common scale.

Activations are quantised with one scale for a tensor. In BERT's states a handful of channels, the same ones for every
text, are ten times as large as the others. A common scale would leave a few of its 255 steps to the other channels. So
the outlying channels are multiplied in fp32, and the others in int8 (Dettmers, Lewis, Belkada, Zettlemoyer: LLM.int8(),
2022, arXiv:2208.07339, section 3.2). The paper looks for them in each input; the export finds them once.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.scoring.inputs import Tokens, pad

SUFFIX = ".outliers"
"""Suffix of the names of products that stay in fp32."""
MIN_WEIGHTS = 1024
"""Smaller matrices stay as they are."""

Largest = Mapping[str, npt.NDArray[np.float32]]


def separate_outliers(model: Any, sequences: Iterable[Tokens], channels: int, min_gain: float) -> None:
    """Split matrix products of an fp32 ``onnx.ModelProto`` in place: one product has the outlying channels.

    The graph's output stays the same, up to rounding.

    Args:
        model: a model whose inputs are fields of `osrerank.scoring.inputs.PaddedBatch`.
        sequences: sequences whose largest activations show which channels are outliers.
        channels: maximum number of channels to separate in a product.
        min_gain: factor by which the scale must shrink for a product to be split.
    """
    onnx = require("onnx", extra="onnx")
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in products_of(model) if np.prod(weights[node.input[1]].dims) >= MIN_WEIGHTS]
    largest = largest_activations(model, [node.input[0] for node in products], sequences)
    nodes = []
    for node in model.graph.node:
        outlying_channels = _outliers(largest[node.input[0]], channels, min_gain) if node in products else []
        if not outlying_channels:
            nodes.append(node)
            continue
        weight = onnx.numpy_helper.to_array(weights[node.input[1]])
        mask = np.ones(len(weight), dtype=np.float32)
        mask[outlying_channels] = 0
        constants = {"places": np.array(outlying_channels), "weight": weight[outlying_channels], "kept": mask}
        for name, array in constants.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, outlying(node.name, name)))
        nodes += _split_product(onnx.helper.make_node, node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def largest_activations(model: Any, names: Sequence[str], sequences: Iterable[Tokens]) -> Largest:
    """Return the largest magnitude of each channel of the named values, float32 ``(channels,)``, over the sequences."""
    largest: dict[str, npt.NDArray[np.float32]] = {}
    for values in observed(model, names, sequences):
        for name, value in values.items():
            magnitudes = np.abs(value).max(axis=tuple(range(value.ndim - 1)))
            largest[name] = np.maximum(largest.get(name, magnitudes), magnitudes)
    return largest


def observed(
    model: Any, names: Sequence[str], sequences: Iterable[Tokens]
) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """Yield the named values of an ``onnx.ModelProto`` for each sequence."""
    onnx = require("onnx", extra="onnx")
    runtime: Any = require("onnxruntime", extra="onnx")
    watched = copy.deepcopy(model)
    outputs = list(dict.fromkeys(names))
    if not outputs:  # without names, ONNX Runtime would return the graph's own outputs
        return
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs
    )
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]
    for tokens in sequences:
        batch = pad([tokens])
        values = session.run(outputs, {name: getattr(batch, name) for name in inputs})
        yield dict(zip(outputs, values, strict=True))


def products_of(model: Any) -> list[Any]:
    """Return the nodes that multiply by a constant matrix, except those of outlying channels."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    return [
        node
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and not node.name.endswith(SUFFIX)
    ]


def outlying(product: str, constant: str) -> str:
    """Return the name of a split product's constant for outlying channels: ``places``, ``weight`` or ``kept``."""
    return f"{product}{SUFFIX}.{constant}"


def _outliers(largest: npt.NDArray[np.float32], channels: int, min_gain: float) -> list[int]:
    """Return the largest channels, in order; an empty list if the next channels are about as large."""
    order = np.argsort(-largest, kind="stable")
    if channels < 1 or len(order) <= channels or largest[order[0]] < min_gain * largest[order[channels]]:
        return []
    return sorted(int(channel) for channel in order[:channels])


def stands_out(largest: npt.NDArray[np.float32], channels: int, min_gain: float) -> bool:
    """Return whether the largest channels are at least ``min_gain`` times as large as the next one."""
    return bool(_outliers(largest, channels, min_gain))


def _split_product(make_node: Any, node: Any) -> list[Any]:
    """Return the nodes that replace a product: one product for outlying channels, one for the others, and their sum."""
    states, weight = node.input
    name = f"{node.name}{SUFFIX}"
    inlying = f"{name}.others"
    return [
        make_node("Mul", [states, f"{name}.kept"], [inlying], name=f"{name}.hide"),
        make_node("Gather", [states, f"{name}.places"], [f"{name}.few"], name=f"{name}.take", axis=-1),
        make_node("MatMul", [inlying, weight], [f"{name}.product"], name=node.name),
        make_node("MatMul", [f"{name}.few", f"{name}.weight"], [f"{name}.rest"], name=name),
        make_node("Add", [f"{name}.product", f"{name}.rest"], [node.output[0]], name=f"{name}.sum"),
    ]
