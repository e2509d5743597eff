"""BERT's weights under the names of these modules."""

from collections.abc import Mapping

import torch
from torch import Tensor

EMBEDDINGS = {"word": "word_embeddings", "position": "position_embeddings", "segment": "token_type_embeddings"}
LAYER = {
    "attended": "attention.output.dense",
    "attended_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "norm": "output.LayerNorm",
}
PARTS = ("weight", "bias")
PROJECTIONS = ("query", "key", "value")


def plain_names(weights: Mapping[str, Tensor], prefix: str = "bert.") -> dict[str, Tensor]:
    """Return weights in float32 without the encoder's prefix; TensorFlow's names of norms become today's."""
    later = {"gamma": "weight", "beta": "bias"}
    named: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        stem, _, part = name.removeprefix(prefix).rpartition(".")
        named[f"{stem}.{later.get(part, part)}"] = tensor.float()
    return named


def encoder_weights(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return an encoder's weights by our names, as `layer_weights` has them.

    Args:
        weights: by `plain_names`.
        layers: how many the encoder has.

    Raises:
        KeyError: a weight is missing.
    """
    ours = {f"{name}.weight": weights[f"embeddings.{theirs}.weight"] for name, theirs in EMBEDDINGS.items()}
    for part in PARTS:
        ours[f"norm.{part}"] = weights[f"embeddings.LayerNorm.{part}"]
    for index in range(layers):
        ours |= layer_weights(weights, f"encoder.layer.{index}", f"layers.{index}")
    return ours


def layer_weights(weights: Mapping[str, Tensor], theirs: str, ours: str) -> dict[str, Tensor]:
    """Return one layer's weights by our names; query, key and value projections become one matrix.

    Args:
        weights: by BERT's names.
        theirs: the layer's prefix there.
        ours: the prefix of our names.

    Raises:
        KeyError: a weight is missing.
    """
    found: dict[str, Tensor] = {}
    for part in PARTS:
        found |= {f"{ours}.{name}.{part}": weights[f"{theirs}.{its}.{part}"] for name, its in LAYER.items()}
        projections = [weights[f"{theirs}.attention.self.{name}.{part}"] for name in PROJECTIONS]
        found[f"{ours}.projections.{part}"] = torch.cat(projections)
    return found


def bert_names(ours: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return an encoder's weights under BERT's names, without a prefix: the inverse of `encoder_weights`."""
    named = {f"embeddings.{theirs}.weight": ours[f"{name}.weight"] for name, theirs in EMBEDDINGS.items()}
    for part in PARTS:
        named[f"embeddings.LayerNorm.{part}"] = ours[f"norm.{part}"]
    for index in range(layers):
        named |= bert_layer_names(ours, f"layers.{index}", f"encoder.layer.{index}")
    return named


def bert_layer_names(weights: Mapping[str, Tensor], ours: str, theirs: str) -> dict[str, Tensor]:
    """Return one layer's weights under BERT's names: the inverse of `layer_weights`."""
    named: dict[str, Tensor] = {}
    for part in PARTS:
        named |= {f"{theirs}.{its}.{part}": weights[f"{ours}.{name}.{part}"] for name, its in LAYER.items()}
        projections = weights[f"{ours}.projections.{part}"].chunk(3)
        for name, tensor in zip(PROJECTIONS, projections, strict=True):
            named[f"{theirs}.attention.self.{name}.{part}"] = tensor
    return named
