"""Read a BERT's weights out of a graph that osrerank exported: a shipped model has no safetensors.

The inverse of `osrerank.export.graph` and `osrerank.export.quantise`. fp32 constants come back exactly; an int8 matrix
as its integers times their scales, with exact outlying channels, or without what smoothing multiplied its rows by.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osrerank._optional import require
from osrerank.scoring.backends.networks.bert_weights import EMBEDDINGS, LAYER, PARTS, bert_names

Array = npt.NDArray[Any]
HEADS = ("pooler.dense", "classifier", "cls.seq_relationship")
MODULES = (".linear", ".norm")
"""What the names of a bi-encoder's modules end with; those of its encoder do not."""


def read_graph_weights(file: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights by their transformers names, without the prefix ``bert.``: float32.

    A bi-encoder's graph has only the first row of the token type table; the others, which are never read, are zeros.

    Args:
        file: the graph.
        config: the model's ``config.json``.

    Raises:
        KeyError: the graph lacks a weight: osrerank did not export it.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    graph, layers = _GraphWeights(_constants(file)), int(config["num_hidden_layers"])
    encoder = _tensors(graph.encoder(layers, int(config["type_vocab_size"])))
    named = {name: tensor.clone() for name, tensor in bert_names(encoder, layers).items()}  # no parts of one matrix
    return {**named, **_tensors(graph.head())}


def _constants(file: Path) -> dict[str, Array]:
    onnx = require("onnx", extra="torch")
    graph = onnx.load(file).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:  # the quantiser turns a head's Gemm into a product of the transposed matrix and a sum
        if node.op_type == "MatMul" and _is_of_head(node.input[1]):
            constants[node.input[1]] = constants[node.input[1]].T
    return constants | _smoothed(graph.node, constants)


def _is_of_head(constant: str) -> bool:
    name, _, part = constant.rpartition(".")
    return part in PARTS and (name in HEADS or name.endswith(MODULES))


def _smoothed(nodes: Iterable[Any], constants: Mapping[str, Array]) -> dict[str, Array]:
    """Return what the inputs of smoothed products are multiplied by ``(inputs,)``, by product and ``.smooth``."""
    factors = {name.removesuffix(".factor"): constants[name] for name in constants if name.endswith(".smooth.factor")}
    read = ((node.input[0].removesuffix("_quantized"), node.input[1]) for node in nodes if "MatMul" in node.op_type)
    return {f"{weight.partition('.weight')[0]}.smooth": factors[states] for states, weight in read if states in factors}


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


class _GraphWeights:
    """A graph's constants, by the names that `osrerank.export.graph` gives them."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self._constants = constants

    def encoder(self, layers: int, segments: int) -> dict[str, Array]:
        """Return an encoder's weights by our names, as `encoder_weights` has them.

        Args:
            layers: how many the encoder has.
            segments: rows of the token type table.
        """
        ours = self._tables(segments)
        for part in PARTS:
            ours[f"norm.{part}"] = self._constants[f"embeddings.LayerNorm.{part}"]
        for index in range(layers):
            ours |= self.layer(index)
        return ours

    def layer(self, index: int) -> dict[str, Array]:
        """Return one layer's weights by our names."""
        layer = f"layers.{index}"
        ours: dict[str, Array] = {}
        for name, theirs in LAYER.items():
            if name.endswith("norm"):
                whole = f"encoder.layer.{index}.{theirs}"
                ours |= {f"{layer}.{name}.{part}": self._constants[f"{whole}.{part}"] for part in PARTS}
            else:
                ours |= self._linear(f"{layer}.{name}", f"{layer}.{name}")
        return ours | self._linear(f"{layer}.projections", *self._projections(layer))

    def _projections(self, layer: str) -> tuple[str, ...]:
        """Return the names of the products that give queries, keys and values."""
        if f"{layer}.projections.bias" in self._constants:
            return (f"{layer}.projections",)
        return f"{layer}.query", f"{layer}.keys_values"

    def head(self) -> dict[str, Array]:
        """Return the weights of a classifier's head, or of a bi-encoder's modules."""
        return {name: array for name, array in self._constants.items() if _is_of_head(name)}

    def _tables(self, segments: int) -> dict[str, Array]:
        word, _, segment = (f"embeddings.{theirs}.weight" for theirs in EMBEDDINGS.values())
        tables = {"word.weight": self._matrix(word), "position.weight": self._matrix("positions")}
        if "segment" not in self._constants:  # a cross-encoder's
            return {**tables, "segment.weight": self._matrix(segment)}
        first = self._constants["segment"]
        others = np.zeros((segments - 1, len(first)), first.dtype)
        return {**tables, "segment.weight": np.concatenate([first[None], others])}

    def _linear(self, name: str, *products: str) -> dict[str, Array]:
        """Return weight and bias of the products side by side, the weight ``(outputs, inputs)``."""
        weight = np.concatenate([self._product(product) for product in products], axis=1).T
        bias = np.concatenate([self._constants[f"{product}.bias"] for product in products])
        return {f"{name}.weight": weight, f"{name}.bias": bias}

    def _product(self, name: str) -> Array:
        """Return the matrix ``(inputs, outputs)`` of a product, its rows and outlying channels as they were."""
        matrix = self._matrix(f"{name}.weight")
        if (factor := self._constants.get(f"{name}.smooth")) is not None:
            return matrix * factor[:, None]
        channels = self._constants.get(f"{name}.outliers.places")
        if channels is not None:
            matrix = matrix.copy()
            matrix[channels] = self._constants[f"{name}.outliers.weight"]
        return matrix

    def _matrix(self, name: str) -> Array:
        """Return a matrix that may be in int8, with a scale for each row, for each column, or for all of it.

        One in int4 has a scale for each block of a row.
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
