"""Load a model's weights into osrerank's own forward pass, if it can compute the model."""

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
from osrerank.scoring.backends.networks.bert_weights import encoder_weights, without_prefix
from osrerank.scoring.backends.networks.heads import HeadNetwork
from osrerank.scoring.backends.networks.modern_bert import encoder as modern_bert
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import first_position
from osrerank.scoring.modular import modern_bert as modern_shape
from osrerank.scoring.modular.head import Head, HeadStep


def obstacle(config: Mapping[str, Any], card: ModelCard, head: Head | None = None) -> str:
    """Return why osrerank's own forward pass cannot compute a model; empty if it can.

    Args:
        config: ``config.json``.
        card: the model's card.
        head: head of a modular cross-encoder; None if the config names the head.
    """
    model_type, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    is_modern = model_type == modern_shape.MODEL_TYPE
    architecture = next(iter(config.get("architectures") or ["nothing"]))
    needs_classifier = not card.is_encoder and head is None
    is_relative = config.get("position_embedding_type", "absolute") != "absolute"
    reasons = {
        f"model_type is {model_type}": model_type not in FAMILIES and not is_modern,
        f"architecture is {architecture}": needs_classifier and architecture not in _classifiers(model_type),
        f"hidden_act is {activation}": activation not in ACTIVATIONS,
        "its positions are relative, or it is a decoder": is_relative or config.get("is_decoder", False),
    }
    for reason, applies in reasons.items():
        if applies:
            return reason
    return modern_shape.obstacle(config) if is_modern else ""


def is_windowed(config: Mapping[str, Any]) -> bool:
    """Return whether the attention of some layers has a window."""
    return config.get("model_type") == modern_shape.MODEL_TYPE


def _classifiers(model_type: Any) -> Mapping[str, str]:
    """Return architecture -> name of the last matrix, for the classifiers of a family."""
    if model_type == modern_shape.MODEL_TYPE:
        return {modern_shape.CLASSIFIER: "classifier"}
    return FAMILIES[model_type].classifiers if model_type in FAMILIES else {}


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
        weights: weights under the checkpoint's own names.
        config: ``config.json``, for which `obstacle` is empty.
        card: the model's card.
        attention: implementation of attention.
        dtype: number type of the encoder's weights.
        head: head of a modular cross-encoder; None if the config names the head.

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
    weights = without_prefix(weights, family.prefix)
    encoder = BertEncoder(config, first_position(config))
    encoder.load_state_dict(encoder_weights(weights, config["num_hidden_layers"]))
    encoder.to(dtype)
    if head is None:
        classifier = family.classifiers[config["architectures"][0]]
        head = Head((HeadStep("dense", family.pooler, "tanh"), HeadStep("dense", classifier)))
    return network_of(encoder, attention, HeadNetwork(head, weights)).eval()


def _modern_bert(weights: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype) -> ClassifierEncoder:
    shape = modern_shape.ModernBertShape.from_config(config)
    encoder = modern_bert.ModernBertEncoder(shape, int(config.get("max_position_embeddings", 8192)))
    encoder.load_state_dict(modern_bert.encoder_weights(weights, encoder))
    return encoder.to(dtype)
