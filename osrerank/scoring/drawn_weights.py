"""Read a BERT's weights out of a graph that osrerank drew: what a shipped model has in the place of safetensors.

The way back of `osrerank.training.graph` and `osrerank.training.quantise`. What the graph has in fp32 comes back as it
was; an int8 matrix as its integers times their scales, its outlying channels exact.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require

Array = npt.NDArray[Any]
PARTS = ("weight", "bias")
TABLES = "embeddings.{}_embeddings.weight"
LINEAR = {
    "attended": ("attention.output.dense",),
    "widen": ("intermediate.dense",),
    "narrow": ("output.dense",),
    "projections": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "query": ("attention.self.query",),
    "keys_values": ("attention.self.key", "attention.self.value"),
}
"""A layer's products in the graph, and whose matrices lie side by side in each."""


def read_drawn(file: Path, config: Mapping[str, Any]) -> dict[str, Array]:
    """Return the weights by their transformers names, without the prefix ``bert.``: float32.

    Of the token type table of the layout ``cross-bias`` the graph has the first row; the others, which it does not
    read, are zeros.

    Args:
        file: the graph.
        config: the model's ``config.json``.

    Raises:
        KeyError: the graph lacks a weight: it is not one that osrerank drew.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    onnx = require("onnx", extra="torch")
    constants = {tensor.name: tensor for tensor in onnx.load(file).graph.initializer}
    return _Drawn({name: onnx.numpy_helper.to_array(tensor) for name, tensor in constants.items()}).weights(config)


class _Drawn:
    """A graph's constants, by the names that `osrerank.training.graph` gives them."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self._constants = constants

    def weights(self, config: Mapping[str, Any]) -> dict[str, Array]:
        """Return all weights of the network."""
        read = {name: array for name, array in self._constants.items() if _is_named_alike(name)}
        read |= self._tables(int(config["type_vocab_size"]))
        for layer in range(int(config["num_hidden_layers"])):
            read |= self._layer(layer)
        return read

    def _tables(self, rows: int) -> dict[str, Array]:
        """Return the embedding tables; the one of token types has so many rows."""
        word, position, segment = (TABLES.format(kind) for kind in ("word", "position", "token_type"))
        tables = {word: self._matrix(word)}
        if "segment" not in self._constants:  # the standard layout
            return {**tables, position: self._constants["positions"], segment: self._matrix(segment)}
        first = self._constants["segment"]
        others = np.zeros((rows - 1, len(first)), first.dtype)
        return {**tables, position: self._matrix(position), segment: np.concatenate([first[None], others])}

    def _layer(self, layer: int) -> dict[str, Array]:
        """Return the weights of a layer's products; its norms have their names in the graph."""
        ours, theirs = f"layers.{layer}", f"encoder.layer.{layer}"
        whole = f"{ours}.projections.bias" in self._constants
        absent = ("query", "keys_values") if whole else ("projections",)
        read = {}
        for product, names in LINEAR.items():
            if product in absent:
                continue
            matrix, bias = self._product(f"{ours}.{product}"), self._constants[f"{ours}.{product}.bias"]
            matrices, biases = np.split(matrix, len(names), axis=1), np.split(bias, len(names))
            for name, one, its in zip(names, matrices, biases, strict=True):
                read[f"{theirs}.{name}.weight"] = np.ascontiguousarray(one.T)
                read[f"{theirs}.{name}.bias"] = its
        return read

    def _product(self, name: str) -> Array:
        """Return the matrix ``(inputs, outputs)`` of a product, its outlying channels as they were."""
        matrix = self._matrix(f"{name}.weight")
        places = self._constants.get(f"{name}.outliers.places")
        if places is not None:
            matrix = matrix.copy()
            matrix[places] = self._constants[f"{name}.outliers.weight"]
        return matrix

    def _matrix(self, name: str) -> Array:
        """Return a matrix that may be in int8: with a scale for each row, for each column, or for all of it."""
        if name in self._constants:
            return self._constants[name]
        if f"{name}.int8" in self._constants:
            return self._constants[f"{name}.int8"].astype(np.float32) * self._constants[f"{name}.scale"]
        integers = self._constants[f"{name}_quantized"].astype(np.float32)
        return (integers - self._constants[f"{name}_zero_point"]) * self._constants[f"{name}_scale"]


def _is_named_alike(name: str) -> bool:
    """Return whether a constant is a weight under its transformers name: a norm's, or a classifier's head."""
    stem, _, part = name.rpartition(".")
    return part in PARTS and ("LayerNorm" in stem or stem in ("pooler.dense", "classifier", "cls.seq_relationship"))
