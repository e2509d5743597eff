"""Read a BERT's weights from an ONNX graph, so that torch can run osrerank's models, which have no safetensors.

This is the inverse of `osrerank.export.graph` and `osrerank.export.quantise`. fp32 weights are read exactly. An int8
matrix becomes its integers times their scales, except for outlier channels, which the graph also stores in fp32. If the
export smoothed a matrix (`osrerank.export.smoothing`), this is undone. "Our names" are those of `bert_weights`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osrerank._optional import require
from osrerank.scoring.backends.networks.bert_weights import EMBEDDINGS, LAYER, PARAMETERS, to_bert_weights

Array = npt.NDArray[Any]
CLASSIFIER_MODULES = ("pooler.dense", "classifier", "cls.seq_relationship")
"""The modules that the head of a BERT classifier can have."""
BI_ENCODER_SUFFIXES = (".linear", ".norm")
"""Name suffixes of a bi-encoder's modules after the encoder, such as ``2_Dense.linear``. The encoder has none."""


def read_graph_weights(file: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights in float32, by transformers' names without the prefix ``bert.``.

    A bi-encoder's graph stores only the first row of the token type table. The other rows are never used, so
    they are filled with zeros.

    Raises:
        KeyError: a weight is missing, because osrerank did not export the graph.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    graph = _GraphWeights(_read_constants(file))
    n_layers = int(config["num_hidden_layers"])
    encoder = _to_tensors(graph.read_encoder(n_layers, int(config["type_vocab_size"])))
    # cloned, because `to_bert_weights` returns views of shared matrices
    weights = {name: tensor.clone() for name, tensor in to_bert_weights(encoder, n_layers).items()}
    return {**weights, **_to_tensors(graph.read_head())}


def _read_constants(file: Path) -> dict[str, Array]:
    """Read the graph's constants by name, and add the smoothing factors by the names of their layers."""
    onnx = require("onnx", extra="torch")
    graph = onnx.load(file).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    # the quantiser splits a head's Gemm into a MatMul with the transposed matrix, and an Add
    for node in graph.node:
        if node.op_type == "MatMul" and _is_head_weight(node.input[1]):
            constants[node.input[1]] = constants[node.input[1]].T
    return constants | _find_smoothing_factors(graph.node, constants)


def _is_head_weight(name: str) -> bool:
    module, _, parameter = name.rpartition(".")
    return parameter in PARAMETERS and (module in CLASSIFIER_MODULES or module.endswith(BI_ENCODER_SUFFIXES))


def _find_smoothing_factors(nodes: Iterable[Any], constants: Mapping[str, Array]) -> dict[str, Array]:
    """Return the factors ``(inputs,)`` by which the graph multiplies each smoothed MatMul's inputs.

    The key of the MatMul ``layers.0.widen`` is ``layers.0.widen.smooth``.
    """
    # The smoothed value NAME.smooth is the product of NAME and the constant NAME.smooth.factor.
    factors = {name.removesuffix(".factor"): constants[name] for name in constants if name.endswith(".smooth.factor")}
    factors_by_layer: dict[str, Array] = {}
    for node in nodes:
        if "MatMul" in node.op_type:
            states = node.input[0].removesuffix("_quantized")
            layer = node.input[1].partition(".weight")[0]
            if states in factors:
                factors_by_layer[f"{layer}.smooth"] = factors[states]
    return factors_by_layer


def _to_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


class _GraphWeights:
    """Reads the weights from a graph's constants, which have the names that `osrerank.export.graph` gave them."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self._constants = constants

    def read_encoder(self, n_layers: int, n_segments: int) -> dict[str, Array]:
        """Return an encoder's weights under our names."""
        weights = self._read_embedding_tables(n_segments)
        for parameter in PARAMETERS:
            weights[f"norm.{parameter}"] = self._constants[f"embeddings.LayerNorm.{parameter}"]
        for index in range(n_layers):
            weights |= self._read_layer(index)
        return weights

    def read_head(self) -> dict[str, Array]:
        """Return the weights of a classifier's head, or of a bi-encoder's modules."""
        return {name: array for name, array in self._constants.items() if _is_head_weight(name)}

    def _read_embedding_tables(self, n_segments: int) -> dict[str, Array]:
        word_name = f"embeddings.{EMBEDDINGS['word']}.weight"
        tables = {"word.weight": self._dequantise(word_name), "position.weight": self._dequantise("positions")}
        if "segment" not in self._constants:  # the graph of a cross-encoder, which has the whole table
            segment_name = f"embeddings.{EMBEDDINGS['segment']}.weight"
            return {**tables, "segment.weight": self._dequantise(segment_name)}
        first_row = self._constants["segment"]
        zeros = np.zeros((n_segments - 1, len(first_row)), first_row.dtype)
        return {**tables, "segment.weight": np.concatenate([first_row[None], zeros])}

    def _read_layer(self, index: int) -> dict[str, Array]:
        """Return a layer's weights under our names, such as ``layers.0.widen.weight``.

        The graph computes query, key and value by one MatMul, or in the last layer by ``query`` and ``keys_values``.
        """
        layer = f"layers.{index}"
        weights: dict[str, Array] = {}
        for name, bert_name in LAYER.items():
            if name.endswith("norm"):  # the graph names norms as transformers does
                for parameter in PARAMETERS:
                    constant = f"encoder.layer.{index}.{bert_name}.{parameter}"
                    weights[f"{layer}.{name}.{parameter}"] = self._constants[constant]
            else:  # and matrices as we do
                matmul = f"{layer}.{name}"
                weights |= self._read_linear(matmul, matmul)
        projections = [f"{layer}.projections"]
        if f"{layer}.projections.bias" not in self._constants:
            projections = [f"{layer}.query", f"{layer}.keys_values"]
        return weights | self._read_linear(f"{layer}.projections", *projections)

    def _read_linear(self, name: str, *matmuls: str) -> dict[str, Array]:
        """Return the weight ``(outputs, inputs)`` and the bias of a layer that concatenates the outputs of MatMuls."""
        weight = np.concatenate([self._read_matrix(matmul) for matmul in matmuls], axis=1).T
        bias = np.concatenate([self._constants[f"{matmul}.bias"] for matmul in matmuls])
        return {f"{name}.weight": weight, f"{name}.bias": bias}

    def _read_matrix(self, matmul: str) -> Array:
        """Return the matrix ``(inputs, outputs)`` of a MatMul, with smoothing undone and exact outlier channels."""
        matrix = self._dequantise(f"{matmul}.weight")
        factors = self._constants.get(f"{matmul}.smooth")
        if factors is not None:
            return matrix * factors[:, None]
        outlier_channels = self._constants.get(f"{matmul}.outliers.places")
        if outlier_channels is not None:
            matrix = matrix.copy()
            matrix[outlier_channels] = self._constants[f"{matmul}.outliers.weight"]
        return matrix

    def _dequantise(self, name: str) -> Array:
        """Return in fp32 a matrix that the graph stores in fp32, int8 or int4.

        An int8 matrix has a scale for each row, for each column or for the whole matrix. An int4 matrix has a scale for
        each block of a row.
        """
        if name in self._constants:
            return self._constants[name]
        if f"{name}.int4" in self._constants:
            integers, scales = self._constants[f"{name}.int4"], self._constants[f"{name}.scale"].astype(np.float32)
            blocks = integers.astype(np.float32).reshape(*scales.shape, -1) * scales[..., None]
            return blocks.reshape(len(integers), -1)
        if f"{name}.int8" in self._constants:
            return self._constants[f"{name}.int8"].astype(np.float32) * self._constants[f"{name}.scale"]
        # int8, as ONNX Runtime's quantiser names it
        integers = self._constants[f"{name}_quantized"].astype(np.float32)
        return (integers - self._constants[f"{name}_zero_point"]) * self._constants[f"{name}_scale"]
