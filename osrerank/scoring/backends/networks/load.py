"""Which models our own forward pass computes, and how their weights are loaded into it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from osrerank.scoring.backends.networks.attention import Attention
from osrerank.scoring.backends.networks.bert import (
    ACTIVATIONS,
    FAMILIES,
    BertEncoder,
    ClassifierEncoder,
    PackedClassifier,
    PackedNetwork,
    PackedTokens,
)
from osrerank.scoring.backends.networks.bert_weights import encoder_weights, plain_names
from osrerank.scoring.backends.networks.heads import HeadNetwork
from osrerank.scoring.backends.networks.modern_bert import encoder as modern_bert
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import first_position
from osrerank.scoring.modular import modern_bert as modern_shape
from osrerank.scoring.modular.head import Head, HeadStep


def obstacle(config: Mapping[str, Any], card: ModelCard, head: Head | None = None) -> str:
    """Return why this module cannot compute a model, or nothing.

    Args:
        config: ``config.json``.
        card: the kind of model.
        head: the head of a modular cross-encoder; None where the config names the head.
    """
    kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    architecture = next(iter(config.get("architectures") or ["nothing"]))
    reads_pairs = not card.is_encoder
    is_relative = config.get("position_embedding_type", "absolute") != "absolute"
    known = kind in FAMILIES or kind == modern_shape.MODEL_TYPE
    reasons = {
        f"model_type is {kind}": not known,
        f"architecture is {architecture}": reads_pairs and head is None and architecture not in _classifiers(kind),
        f"hidden_act is {activation}": activation not in ACTIVATIONS,
        "its positions are relative, or it is a decoder": is_relative or config.get("is_decoder", False),
    }
    found = next((reason for reason, applies in reasons.items() if applies), "")
    return found or (modern_shape.obstacle(config) if kind == modern_shape.MODEL_TYPE else "")


def is_windowed(config: Mapping[str, Any]) -> bool:
    """Return whether some layers look at a window alone."""
    return config.get("model_type") == modern_shape.MODEL_TYPE


def _classifiers(kind: Any) -> Mapping[str, str]:
    if kind == modern_shape.MODEL_TYPE:
        return {modern_shape.CLASSIFIER: "classifier"}
    return FAMILIES[kind].classifiers if kind in FAMILIES else {}


def load_packed(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    card: ModelCard,
    *,
    attention: Attention,
    dtype: torch.dtype,
    head: Head | None = None,
) -> PackedNetwork:
    """Return a network with a checkpoint's weights, in evaluation mode; the encoder in ``dtype``, the head in fp32.

    Args:
        weights: the checkpoint's, by its own names.
        config: ``config.json``; `obstacle` finds nothing against it.
        card: the kind of model.
        attention: how rows look at columns.
        dtype: the number type of the encoder's weights.
        head: the head of a modular cross-encoder; None where the config names the head.

    Raises:
        KeyError: a weight is missing.
    """
    head = card.to_vector if card.is_encoder else head
    network_of = PackedTokens if card.kind == "late-interaction" else PackedClassifier
    if config["model_type"] == modern_shape.MODEL_TYPE:
        encoder = _modern_bert(weights, config, dtype)
        network = HeadNetwork(head or modern_shape.classifier_head(config), weights)
        return network_of(encoder, attention, network).eval()
    family = FAMILIES[config["model_type"]]
    plain = plain_names(weights, family.prefix)
    encoder = BertEncoder(config, first_position(config))
    encoder.load_state_dict(encoder_weights(plain, config["num_hidden_layers"]))
    encoder.to(dtype)
    if head is None:
        second = family.classifiers[config["architectures"][0]]
        head = Head((HeadStep("dense", family.pooler, "tanh"), HeadStep("dense", second)))
    return network_of(encoder, attention, HeadNetwork(head, plain)).eval()


def _modern_bert(weights: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype) -> ClassifierEncoder:
    shape = modern_shape.ModernBertShape.from_config(config)
    encoder = modern_bert.ModernBertEncoder(shape, int(config.get("max_position_embeddings", 8192)))
    encoder.load_state_dict(modern_bert.encoder_weights(weights, encoder))
    return encoder.to(dtype)
