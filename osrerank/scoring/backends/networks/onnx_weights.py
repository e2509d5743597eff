"""Read a BERT's weights from a graph that osrerank exported, because a shipped model has no safetensors.

This is the inverse of `osrerank.export.graph` and `osrerank.export.quantise`. fp32 weights come back exactly. An int8
matrix comes back as its integers times their scales; its outlying channels come back exactly, and the smoothing of its
rows is undone.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osrerank._optional import require
from osrerank.scoring.backends.networks.bert_weights import EMBEDDINGS, LAYER, PARAMETERS, bert_names

Array = npt.NDArray[Any]
HEADS = ("pooler.dense", "classifier", "cls.seq_relationship")
MODULES = (".linear", ".norm")
"""Suffixes of the names of a bi-encoder's modules; its encoder's names do not have them."""


def read_graph_weights(file: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights in float32, by transformers' names without the prefix ``bert.``.

    A bi-encoder's graph has only the first row of the token type table; the other rows, which are never used, are
    zeros.

    Args:
        file: the graph's file.
        config: the model's ``config.json``.

    Raises:
        KeyError: the graph lacks a weight, because osrerank did not export it.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    graph, layers = _GraphWeights(_constants(file)), int(config["num_hidden_layers"])
    encoder = _tensors(graph.encoder(layers, int(config["type_vocab_size"])))
    weights = {name: tensor.clone() for name, tensor in bert_names(encoder, layers).items()}  # no views of one matrix
    return {**weights, **_tensors(graph.head())}


def _constants(file: Path) -> dict[str, Array]:
    onnx = require("onnx", extra="torch")
    graph = onnx.load(file).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:  # the quantiser turns a head's Gemm into a product of the transposed matrix and a sum
        if node.op_type == "MatMul" and _belongs_to_head(node.input[1]):
            constants[node.input[1]] = constants[node.input[1]].T
    return constants | _smoothing_factors(graph.node, constants)


def _belongs_to_head(constant: str) -> bool:
    module, _, parameter = constant.rpartition(".")
    return parameter in PARAMETERS and (module in HEADS or module.endswith(MODULES))


def _smoothing_factors(nodes: Iterable[Any], constants: Mapping[str, Array]) -> dict[str, Array]:
    """Return ``PRODUCT.smooth`` -> the factors ``(inputs,)`` of the inputs of a smoothed product."""
    factors = {name.removesuffix(".factor"): constants[name] for name in constants if name.endswith(".smooth.factor")}
    smoothed: dict[str, Array] = {}
    for node in nodes:
        if "MatMul" in node.op_type:
            states, weight = node.input[0].removesuffix("_quantized"), node.input[1]
            if states in factors:
                smoothed[f"{weight.partition('.weight')[0]}.smooth"] = factors[states]
    return smoothed


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


class _GraphWeights:
    """The constants of a graph, under the names that `osrerank.export.graph` uses."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self._constants = constants

    def encoder(self, layers: int, segments: int) -> dict[str, Array]:
        """Return an encoder's weights under our names, as `encoder_weights` does.

        Args:
            layers: number of the encoder's layers.
            segments: number of rows in the token type table.
        """
        ours = self._tables(segments)
        for parameter in PARAMETERS:
            ours[f"norm.{parameter}"] = self._constants[f"embeddings.LayerNorm.{parameter}"]
        for index in range(layers):
            ours |= self.layer(index)
        return ours

    def layer(self, index: int) -> dict[str, Array]:
        """Return one layer's weights under our names."""
        layer = f"layers.{index}"
        ours: dict[str, Array] = {}
        for name, theirs in LAYER.items():
            if name.endswith("norm"):
                for parameter in PARAMETERS:
                    constant = f"encoder.layer.{index}.{theirs}.{parameter}"
                    ours[f"{layer}.{name}.{parameter}"] = self._constants[constant]
            else:
                ours |= self._linear(f"{layer}.{name}", f"{layer}.{name}")
        return ours | self._linear(f"{layer}.projections", *self._projections(layer))

    def _projections(self, layer: str) -> tuple[str, ...]:
        """Return the names of the products that compute queries, keys and values."""
        if f"{layer}.projections.bias" in self._constants:
            return (f"{layer}.projections",)
        return f"{layer}.query", f"{layer}.keys_values"

    def head(self) -> dict[str, Array]:
        """Return the weights of a classifier's head, or of a bi-encoder's modules."""
        return {name: array for name, array in self._constants.items() if _belongs_to_head(name)}

    def _tables(self, segments: int) -> dict[str, Array]:
        word, _, segment = (f"embeddings.{theirs}.weight" for theirs in EMBEDDINGS.values())
        tables = {"word.weight": self._matrix(word), "position.weight": self._matrix("positions")}
        if "segment" not in self._constants:  # in a cross-encoder's graph
            return {**tables, "segment.weight": self._matrix(segment)}
        first = self._constants["segment"]
        zeros = np.zeros((segments - 1, len(first)), first.dtype)
        return {**tables, "segment.weight": np.concatenate([first[None], zeros])}

    def _linear(self, name: str, *products: str) -> dict[str, Array]:
        """Return the weight ``(outputs, inputs)`` and the bias of a layer that concatenates the products' outputs."""
        weight = np.concatenate([self._product(product) for product in products], axis=1).T
        bias = np.concatenate([self._constants[f"{product}.bias"] for product in products])
        return {f"{name}.weight": weight, f"{name}.bias": bias}

    def _product(self, name: str) -> Array:
        """Return the matrix ``(inputs, outputs)`` of a product, without smoothing and with exact outlying channels."""
        matrix = self._matrix(f"{name}.weight")
        if (factor := self._constants.get(f"{name}.smooth")) is not None:
            return matrix * factor[:, None]
        channels = self._constants.get(f"{name}.outliers.places")
        if channels is not None:
            matrix = matrix.copy()
            matrix[channels] = self._constants[f"{name}.outliers.weight"]
        return matrix

    def _matrix(self, name: str) -> Array:
        """Return a matrix in fp32; the graph may have it in int8 or int4.

        In int8, each row, each column or the whole matrix has a scale; in int4, each block of a row.
        """
        if name in self._constants:
            return self._constants[name]
        if f"{name}.int4" in self._constants:
            integers, scales = self._constants[f"{name}.int4"], self._constants[f"{name}.scale"].astype(np.float32)
            blocks = integers.astype(np.float32).reshape(*scales.shape, -1) * scales[..., None]
            return blocks.reshape(len(integers), -1)
        if f"{name}.int8" in self._constants:
            return self._constants[f"{name}.int8"].astype(np.float32) * self._constants[f"{name}.scale"]
        integers = self._constants[f"{name}_quantized"].astype(np.float32)
        return (integers - self._constants[f"{name}_zero_point"]) * self._constants[f"{name}_scale"]
