"""Keep the few channels that are far larger than the rest out of int8, so that they do not widen everyone's scale.

Activations are quantised with one scale for a tensor. In BERT's states a handful of channels, the same ones for every
text, are ten times as large as the others, which are then left with a few of the 255 steps. Those channels are
multiplied in fp32, the rest in int8 (Dettmers, Lewis, Belkada, Zettlemoyer: LLM.int8(), 2022, arXiv:2208.07339, section
3.2, who look for them in each input; here they are found once, at export).
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.scoring.inputs import Tokens, padded

SUFFIX = ".outliers"
"""Ends the names of the products that stay fp32."""
MIN_WEIGHTS = 1024
"""Smaller matrices are left alone."""

Largest = Mapping[str, npt.NDArray[np.float32]]


def separate_outliers(model: Any, sequences: Iterable[Tokens], channels: int, least_gain: float) -> None:
    """Divide matrix products of an fp32 ``onnx.ModelProto``, in place: some channels of their input by themselves.

    The graph computes what it did, up to rounding.

    Args:
        model: with inputs of `osrerank.scoring.inputs.Batch`'s names.
        sequences: whose largest activations tell which channels stand out.
        channels: how many are separated in a product, where they do.
        least_gain: how much smaller the scale must become for a product to be divided.
    """
    onnx = require("onnx", extra="onnx")
    weights = {tensor.name: tensor for tensor in model.graph.initializer if _is_matrix(tensor)}
    products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    largest = largest_activations(model, [node.input[0] for node in products], sequences)
    nodes = []
    for node in model.graph.node:
        apart = _outliers(largest[node.input[0]], channels, least_gain) if node in products else []
        if not apart:
            nodes.append(node)
            continue
        weight = onnx.numpy_helper.to_array(weights[node.input[1]])
        kept = np.ones(len(weight), dtype=np.float32)
        kept[apart] = 0
        constants = {"kept": kept, "places": np.array(apart), "weight": weight[apart]}
        for name, array in constants.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"{node.name}{SUFFIX}.{name}"))
        nodes += _divided(onnx.helper.make_node, node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def largest_activations(model: Any, names: Sequence[str], sequences: Iterable[Tokens]) -> Largest:
    """Return the largest magnitude of each channel of the named values, float32 ``(channels,)``, over the sequences."""
    onnx = require("onnx", extra="onnx")
    runtime: Any = require("onnxruntime", extra="onnx")
    watched = copy.deepcopy(model)
    outputs = list(dict.fromkeys(names))
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs
    )
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]
    largest: dict[str, npt.NDArray[np.float32]] = {}
    for tokens in sequences:
        batch = padded([tokens])
        values = session.run(outputs, {name: getattr(batch, name) for name in inputs})
        for name, value in zip(outputs, values, strict=True):
            found = np.abs(value).max(axis=tuple(range(value.ndim - 1)))
            largest[name] = np.maximum(largest.get(name, found), found)
    return largest


def _is_matrix(tensor: Any) -> bool:
    return len(tensor.dims) == 2 and int(np.prod(tensor.dims)) >= MIN_WEIGHTS


def _outliers(largest: npt.NDArray[np.float32], channels: int, least_gain: float) -> list[int]:
    """Return the largest channels, in order; none where the next ones are about as large."""
    order = np.argsort(-largest, kind="stable")
    if channels < 1 or len(order) <= channels or largest[order[0]] < least_gain * largest[order[channels]]:
        return []
    return sorted(int(place) for place in order[:channels])


def _divided(make_node: Any, node: Any) -> list[Any]:
    """Return the nodes of a product whose outlying channels are multiplied by themselves."""
    states, weight = node.input
    name = f"{node.name}{SUFFIX}"
    return [
        make_node("Mul", [states, f"{name}.kept"], [f"{name}.others"], name=f"{name}.hide"),
        make_node("Gather", [states, f"{name}.places"], [f"{name}.few"], name=f"{name}.take", axis=-1),
        make_node("MatMul", [f"{name}.others", weight], [f"{name}.product"], name=node.name),
        make_node("MatMul", [f"{name}.few", f"{name}.weight"], [f"{name}.rest"], name=name),
        make_node("Add", [f"{name}.product", f"{name}.rest"], [node.output[0]], name=f"{name}.sum"),
    ]
