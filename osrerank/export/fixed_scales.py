"""Fix the scales of an int8 graph's activations at export, so that sequences may go through its products together.

A product that computes the scale of each input needs a pass for each sequence: in a shared pass, other sequences would
change a score. Each pass reads every weight, which is a fifth of the time of a short sequence. With scales fixed once,
from sequences that show how large activations become, the rows of a product are independent (Wu, Judd, Zhang, Isaev,
Micikevicius: Integer Quantization for Deep Learning Inference, 2020,
arXiv:2004.09602, section 3.3, calibration by the maximum). Larger values saturate.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.export.outliers import observed, outlying, products_of
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.model_files import FIXED_SCALES

STEPS = 255
RUNTIME = "com.microsoft"
QUANTISED = "_quant"
"""Suffix of ONNX Runtime's quantiser for the names of products."""

Ranges = Mapping[str, tuple[float, float]]


def activation_ranges(model: Any, sequences: Iterable[Tokens]) -> Ranges:
    """Return the least and the largest value of each product's input, by that input's name.

    Outlying channels, which stay fp32, are left out.

    Args:
        model: an fp32 ``onnx.ModelProto``, with `osrerank.export.outliers.separate_outliers` done.
        sequences: what to compute.
    """
    onnx = require("onnx", extra="onnx")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    apart = {
        node.input[0]: onnx.numpy_helper.to_array(constants[places]) if places in constants else []
        for node in products_of(model)
        for places in [outlying(node.name, "places")]
    }
    ranges = dict.fromkeys(apart, (0.0, 0.0))  # each range contains zero, and zero is one of its steps
    for values in observed(model, [*apart], sequences):
        for name, value in values.items():
            kept = np.delete(value, apart[name], axis=-1)
            least, largest = ranges[name]
            ranges[name] = min(least, float(kept.min())), max(largest, float(kept.max()))
    return ranges


def fix_scales(model: Any, ranges: Ranges) -> None:
    """Replace the dynamic scales of an int8 ``onnx.ModelProto`` by fixed ones, in place, and mark its metadata.

    Args:
        model: as ``onnxruntime.quantization.quantize_dynamic`` made it.
        ranges: from `activation_ranges` of the fp32 graph.
    """
    onnx = require("onnx", extra="onnx")
    make_node, graph = onnx.helper.make_node, model.graph
    inputs: dict[str, str] = {}  # an input's scale, by its zero point
    weights: dict[str, str] = {}  # a weight's scale, by its product with an input's
    integers: dict[str, Any] = {}  # products, by their integers and by those cast to fp32
    nodes = []
    for node in graph.node:
        first = node.input[0] if node.input else ""
        if node.op_type == "DynamicQuantizeLinear":
            integer, scale, zero_point = node.output
            for name, array in zip((scale, zero_point), _step(*ranges[first]), strict=True):
                graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            inputs[zero_point] = scale
            nodes.append(make_node("QuantizeLinear", [first, scale, zero_point], [integer], name=node.name))
        elif node.op_type == "MatMulInteger" or (node.op_type == "Cast" and first in integers):
            integers[node.output[0]] = integers.get(first, node)
        elif node.op_type == "Mul" and first in inputs.values():
            weights[node.output[0]] = node.input[1]
        elif node.op_type == "Mul" and first in integers:
            product, scale = integers[first], weights[node.input[1]]
            states, weight, zero_point, weight_zero_point = product.input
            read = [states, weight, inputs[zero_point], scale, zero_point, weight_zero_point]
            name = product.name.removesuffix(QUANTISED)
            nodes.append(make_node("MatMulIntegerToFloat", read, [*node.output], name=name, domain=RUNTIME))
        else:
            nodes.append(node)
    nodes = _with_biases(nodes, {tensor.name: tuple(tensor.dims) for tensor in graph.initializer})
    del graph.node[:]
    graph.node.extend(nodes)
    if RUNTIME not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(RUNTIME, 1))
    model.metadata_props.add(key=FIXED_SCALES, value="yes")


def _with_biases(nodes: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]) -> list[Any]:
    """Return the nodes with each bias added by its product in place of a node of its own.

    Args:
        nodes: a graph's, in order.
        shapes: of its constants.
    """
    readers = Counter(name for node in nodes for name in node.input)
    products: dict[str, tuple[Any, Any]] = {}  # and the nodes that complete them, by what those give
    kept = []
    for node in nodes:
        given = [name for name in node.input if name in products and readers[name] == 1]
        if node.op_type == "MatMulIntegerToFloat":
            products[node.output[0]] = node, node
        elif node.op_type == "Add" and given:
            product, end = products[given[0]]
            columns = shapes[product.input[1]][-1:]
            bias = next((name for name in node.input if shapes.get(name) == columns), "")
            if bias:
                product.input.append(bias)
                end.output[0] = node.output[0]
                continue
            if node.name == outlying(product.name, "sum"):
                products[node.output[0]] = product, node
        kept.append(node)
    return kept


def _step(least: float, largest: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return scale and zero point of uint8 for a range that has zero in it."""
    scale = max(largest - least, float(np.finfo(np.float32).tiny)) / STEPS
    return np.array(scale, dtype=np.float32), np.array(round(-least / scale), dtype=np.uint8)
