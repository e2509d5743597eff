"""Which models our own forward pass computes, and how their weights are loaded into it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from osrerank.scoring.card import ModelCard
from osrerank.scoring.networks.attention import Attention
from osrerank.scoring.networks.bert import ACTIVATIONS, FAMILIES, Encoder, PackedClassifier, PackedNetwork
from osrerank.scoring.networks.bert_weights import PARTS, encoder_weights, plain_names
from osrerank.scoring.networks.packed_bi_encoders import PackedCrossBias, PackedJoined


def obstacle(config: Mapping[str, Any], card: ModelCard) -> str:
    """Return why this module cannot compute a model, or nothing."""
    kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    architecture = next(iter(config.get("architectures") or ["nothing"]))
    is_standard, joining = card.layout == "standard", card.joining
    is_relative = config.get("position_embedding_type", "absolute") != "absolute"
    reasons = {
        f"model_type is {kind}": kind not in FAMILIES,
        f"the layout is {card.layout}, model_type {kind}": not is_standard and kind != "bert",
        f"architecture is {architecture}": is_standard and architecture not in _classifiers(kind),
        "one row of the query looks at the document in several layers": (
            card.layout == "joined" and joining.layers > 1 and joining.rows == "cls"
        ),
        "a query looks at two documents at once": card.layout == "joined" and card.kind == "duo",
        "its joined layers have weights of their own": card.layout == "joined" and joining.own_weights,
        f"hidden_act is {activation}": activation not in ACTIVATIONS,
        "its positions are relative, or it is a decoder": is_relative or config.get("is_decoder", False),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _classifiers(kind: Any) -> Mapping[str, str]:
    return FAMILIES[kind].classifiers if kind in FAMILIES else {}


def load_packed(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    card: ModelCard,
    *,
    attention: Attention,
    dtype: torch.dtype,
) -> PackedNetwork:
    """Return a network with a checkpoint's weights, in evaluation mode; the encoder in ``dtype``, the head in fp32.

    Args:
        weights: the checkpoint's, by its own names.
        config: ``config.json``; `obstacle` finds nothing against it.
        card: the layout.
        attention: how rows look at columns.
        dtype: of the encoder, except that the embeddings of a model that pools documents stay fp32.

    Raises:
        KeyError: a weight is missing.
    """
    family = FAMILIES[config["model_type"]]
    plain = plain_names(weights, family.prefix)
    first_position = int(config["pad_token_id"]) + 1 if family.counts_from_padding else 0
    encoder = Encoder(config, first_position)
    encoder.load_state_dict(encoder_weights(plain, config["num_hidden_layers"]))
    if not card.cross_bias.pools:
        encoder.to(dtype)
    else:  # in 16 bits, other pieces would share a state
        encoder.layers.to(dtype)
    if card.layout == "cross-bias":
        return PackedCrossBias(encoder, attention, card.cross_bias, kind=card.kind).eval()
    if card.layout == "joined":
        return PackedJoined(encoder, attention, card.joining).eval()
    second = family.classifiers[config["architectures"][0]]
    network = PackedClassifier(encoder, attention, labels=len(plain[f"{second}.weight"]))
    for ours, theirs in ((network.pooler, family.pooler), (network.classifier, second)):
        ours.load_state_dict({part: plain[f"{theirs}.{part}"] for part in PARTS})
    return network.eval()
