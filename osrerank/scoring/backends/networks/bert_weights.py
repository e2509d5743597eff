"""Rename a BERT's weights between transformers' names ("BERT's names") and those of our modules ("our names").

For example, BERT's ``encoder.layer.0.intermediate.dense.weight`` is our ``layers.0.widen.weight``.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from osrerank.scoring.model_files import current_name

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
    """Return weights in float32, without the encoder's prefix and with the current names of LayerNorm's parameters.

    ``bert.embeddings.LayerNorm.gamma`` becomes ``embeddings.LayerNorm.weight``.
    """
    return {current_name(name.removeprefix(prefix)): tensor.float() for name, tensor in weights.items()}


def from_bert_weights(weights: Mapping[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    """Return the weights of an encoder under our names, from those that `normalise_names` returned.

    Raises:
        KeyError: a weight is missing.
    """
    return {name: torch.cat([weights[part] for part in parts]) for name, parts in _list_names(n_layers)}


def to_bert_weights(weights: Mapping[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    """Return an encoder's weights under BERT's names, without a prefix: the inverse of `from_bert_weights`."""
    return {
        part: tensor
        for name, parts in _list_names(n_layers)
        for part, tensor in zip(parts, weights[name].chunk(len(parts)), strict=True)
    }


def _list_names(n_layers: int) -> Iterator[tuple[str, list[str]]]:
    """Yield our name of each weight of an encoder, and a list of BERT's names.

    The list has one name, except that our ``projections`` concatenates a layer's query, key and value matrices.
    """
    for name, bert_name in EMBEDDINGS.items():
        yield f"{name}.weight", [f"embeddings.{bert_name}.weight"]
    for parameter in PARAMETERS:
        yield f"norm.{parameter}", [f"embeddings.LayerNorm.{parameter}"]
        for index in range(n_layers):
            layer, bert_layer = f"layers.{index}", f"encoder.layer.{index}"
            for name, bert_name in LAYER.items():
                yield f"{layer}.{name}.{parameter}", [f"{bert_layer}.{bert_name}.{parameter}"]
            yield (
                f"{layer}.projections.{parameter}",
                [f"{bert_layer}.attention.self.{name}.{parameter}" for name in PROJECTIONS],
            )
