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


def plain_names(weights: Mapping[str, Tensor], prefix: str = "bert.") -> dict[str, Tensor]:
    """Return weights in float32 without the encoder's prefix; TensorFlow's names of norms become today's."""
    later = {"gamma": "weight", "beta": "bias"}
    named = {}
    for name, tensor in weights.items():
        stem, _, part = name.removeprefix(prefix).rpartition(".")
        named[f"{stem}.{later.get(part, part)}"] = tensor.float()
    return named


def encoder_weights(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return an encoder's weights by our names; query, key and value projections become one matrix.

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
            theirs = f"encoder.layer.{index}"
            ours |= {f"layers.{index}.{name}.{part}": weights[f"{theirs}.{its}.{part}"] for name, its in LAYER.items()}
            projections = [weights[f"{theirs}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            ours[f"layers.{index}.projections.{part}"] = torch.cat(projections)
    return ours


def bert_names(ours: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return an encoder's weights under BERT's names, without a prefix: the inverse of `encoder_weights`."""
    named = {f"embeddings.{theirs}.weight": ours[f"{name}.weight"] for name, theirs in EMBEDDINGS.items()}
    for part in PARTS:
        named[f"embeddings.LayerNorm.{part}"] = ours[f"norm.{part}"]
        for index in range(layers):
            theirs = f"encoder.layer.{index}"
            named |= {f"{theirs}.{its}.{part}": ours[f"layers.{index}.{name}.{part}"] for name, its in LAYER.items()}
            projections = ours[f"layers.{index}.projections.{part}"].chunk(3)
            for name, tensor in zip(("query", "key", "value"), projections, strict=True):
                named[f"{theirs}.attention.self.{name}.{part}"] = tensor
    return named
