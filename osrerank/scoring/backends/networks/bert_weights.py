"""Rename a BERT's weights between transformers' names ("BERT's names") and those of our modules ("our names")."""

from collections.abc import Mapping

import torch
from torch import Tensor

EMBEDDINGS = {"word": "word_embeddings", "position": "position_embeddings", "segment": "token_type_embeddings"}
"""Our name of an embedding table -> BERT's name."""
LAYER = {
    "attended": "attention.output.dense",
    "attended_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "norm": "output.LayerNorm",
}
"""Our name of a module in a layer -> BERT's name."""
PARAMETERS = ("weight", "bias")
PROJECTIONS = ("query", "key", "value")


def normalise_names(weights: Mapping[str, Tensor], prefix: str = "bert.") -> dict[str, Tensor]:
    """Return weights in float32, without the encoder's prefix and with transformers' current names for norms."""
    current_names = {"gamma": "weight", "beta": "bias"}
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        module, _, parameter = name.removeprefix(prefix).rpartition(".")
        renamed[f"{module}.{current_names.get(parameter, parameter)}"] = tensor.float()
    return renamed


def from_bert_weights(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return the weights of an encoder under our names, from those that `normalise_names` returned.

    Raises:
        KeyError: a weight is missing.
    """
    ours = {f"{name}.weight": weights[f"embeddings.{bert_name}.weight"] for name, bert_name in EMBEDDINGS.items()}
    for parameter in PARAMETERS:
        ours[f"norm.{parameter}"] = weights[f"embeddings.LayerNorm.{parameter}"]
    for index in range(layers):
        ours |= from_bert_layer_weights(weights, f"encoder.layer.{index}", f"layers.{index}")
    return ours


def from_bert_layer_weights(weights: Mapping[str, Tensor], bert_prefix: str, our_prefix: str) -> dict[str, Tensor]:
    """Return one layer's weights under our names, with the query, key and value projections in one matrix.

    The layer's names begin with ``bert_prefix`` among BERT's names, and with ``our_prefix`` among our names.

    Raises:
        KeyError: a weight is missing.
    """
    renamed: dict[str, Tensor] = {}
    for parameter in PARAMETERS:
        for our_name, bert_name in LAYER.items():
            renamed[f"{our_prefix}.{our_name}.{parameter}"] = weights[f"{bert_prefix}.{bert_name}.{parameter}"]
        projections = [weights[f"{bert_prefix}.attention.self.{name}.{parameter}"] for name in PROJECTIONS]
        renamed[f"{our_prefix}.projections.{parameter}"] = torch.cat(projections)
    return renamed


def to_bert_weights(ours: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return an encoder's weights under BERT's names, without a prefix: the inverse of `from_bert_weights`."""
    renamed = {f"embeddings.{bert_name}.weight": ours[f"{name}.weight"] for name, bert_name in EMBEDDINGS.items()}
    for parameter in PARAMETERS:
        renamed[f"embeddings.LayerNorm.{parameter}"] = ours[f"norm.{parameter}"]
    for index in range(layers):
        renamed |= to_bert_layer_weights(ours, f"layers.{index}", f"encoder.layer.{index}")
    return renamed


def to_bert_layer_weights(weights: Mapping[str, Tensor], our_prefix: str, bert_prefix: str) -> dict[str, Tensor]:
    """Return one layer's weights under BERT's names: the inverse of `from_bert_layer_weights`."""
    renamed: dict[str, Tensor] = {}
    for parameter in PARAMETERS:
        for our_name, bert_name in LAYER.items():
            renamed[f"{bert_prefix}.{bert_name}.{parameter}"] = weights[f"{our_prefix}.{our_name}.{parameter}"]
        projections = weights[f"{our_prefix}.projections.{parameter}"].chunk(3)
        for name, tensor in zip(PROJECTIONS, projections, strict=True):
            renamed[f"{bert_prefix}.attention.self.{name}.{parameter}"] = tensor
    return renamed
