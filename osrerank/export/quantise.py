"""Quantise the matrix products and embedding tables of an fp32 ONNX graph to int8."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.export.head_graph import FLOAT32
from osrerank.export.outliers import matrix_products, separate_outliers
from osrerank.export.smoothing import smooth
from osrerank.scoring.inputs import Tokens

MIN_TABLE_ROWS = 512
"""Embedding tables with fewer rows, such as the table of segments, stay in fp32."""
ROW_OPERATORS = frozenset({"Gather", "Slice"})
"""The operators that read rows of a table: Gather reads rows by their ids, and Slice reads the first rows."""


@dataclass(frozen=True, slots=True)
class QuantisationRecipe:
    """How a graph is quantised. The shipped models use the defaults (``docs/research/inference.md``).

    Attributes:
        reduce_range: whether weights have 7 instead of 8 bits. On CPUs without VNNI, sums of 8-bit products can
            overflow.
        outlier_method: "separate" multiplies outlier channels in fp32 (`osrerank.export.outliers`). "smooth", which is
            faster, moves their scale into the weights (`osrerank.export.smoothing`). None stands for "separate" here.
            `osrerank.export.write_graphs` replaces it by "smooth" for cross-encoders.
        max_outliers: how many of a matrix product's input channels, the largest ones, can be outliers. 0 means that no
            channel is treated as an outlier.
        min_outlier_gain: the channels are outliers only if the largest of them is at least this many times as large as
            the largest other channel. A higher value makes the graph faster for short inputs.
    """

    reduce_range: bool = True
    outlier_method: Literal["separate", "smooth"] | None = None
    max_outliers: int = 4
    min_outlier_gain: float = 1.25


def quantise(source: Path, target: Path, recipe: QuantisationRecipe, sequences: Sequence[Tokens] = ()) -> None:
    """Write an int8 copy of an fp32 graph. Each activation tensor has one scale.

    The sample sequences show which channels are outliers. Without sequences, no channel is an outlier.

    Raises:
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    onnx = require("onnx", extra="onnx")
    quantization: Any = require("onnxruntime.quantization", extra="onnx")
    graph = onnx.load(source)
    # The quantiser infers shapes in any case, but without this entry it warns that they should be inferred.
    graph.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    if sequences and recipe.max_outliers:
        treat_outliers = smooth if recipe.outlier_method == "smooth" else separate_outliers
        treat_outliers(graph, sequences, recipe.max_outliers, recipe.min_outlier_gain)
    quantise_tables(graph)
    quantization.quantize_dynamic(
        graph,
        target,
        op_types_to_quantize=["MatMul"],
        nodes_to_exclude=_names_of_fp32_nodes(graph),
        per_channel=True,
        reduce_range=recipe.reduce_range,
        weight_type=quantization.QuantType.QInt8,
        # ONNX cannot infer the types of tensors after ONNX Runtime's own operators, so they are taken for floats
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )


def _names_of_fp32_nodes(model: Any) -> list[str]:
    """Return the names of products that stay in fp32: those of outlier channels, of activations and of the head."""
    quantised = {node.name for node in matrix_products(model)}
    fp32_products = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.name not in quantised]
    # A head's Gemm multiplies a single row per sequence. The quantiser first turns it into a MatMul of this name.
    return fp32_products + [f"{node.name}_MatMul" for node in model.graph.node if node.op_type == "Gemm"]


def quantise_tables(model: Any) -> None:
    """Replace each large embedding table in an fp32 ``onnx.ModelProto`` with an int8 table and a scale for each row."""
    onnx = require("onnx", extra="onnx")
    graph = model.graph
    use_counts = Counter(name for node in graph.node for name in node.input)
    tables = {
        tensor.name: tensor
        for tensor in graph.initializer
        if len(tensor.dims) == 2 and tensor.dims[0] >= MIN_TABLE_ROWS and use_counts[tensor.name] == 1
    }
    nodes = []
    for node in graph.node:
        reads_rows = node.op_type in ROW_OPERATORS and not node.attribute  # without attributes, Gather reads rows
        table = tables.get(node.input[0]) if reads_rows else None
        if table is None:
            nodes.append(node)
            continue
        rows, scales = quantise_rows(onnx.numpy_helper.to_array(table))
        graph.initializer.remove(table)
        graph.initializer.append(onnx.numpy_helper.from_array(rows, f"{table.name}.int8"))
        graph.initializer.append(onnx.numpy_helper.from_array(scales, f"{table.name}.scale"))
        nodes += _dequantise_rows(onnx.helper.make_node, table.name, node)
    del graph.node[:]
    graph.node.extend(nodes)


def quantise_rows(table: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return int8 rows and their scales ``(rows, 1)``. The error of each value is at most half its scale."""
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(table / scales).astype(np.int8), scales.astype(np.float32)


def _dequantise_rows(make_node: Any, table: str, node: Any) -> list[Any]:
    """Return the nodes that replace a lookup of rows: they look up int8 rows and multiply them by their scales."""
    row_inputs = list(node.input[1:])  # which rows to read: the ids of Gather, or the bounds of Slice
    return [
        make_node(node.op_type, [f"{table}.int8", *row_inputs], [f"{table}.rows"]),
        make_node("Cast", [f"{table}.rows"], [f"{table}.rows.fp32"], to=FLOAT32),
        make_node(node.op_type, [f"{table}.scale", *row_inputs], [f"{table}.scales"]),
        make_node("Mul", [f"{table}.rows.fp32", f"{table}.scales"], list(node.output)),
    ]
