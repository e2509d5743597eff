"""Decide whether osrerank's forward pass can compute a model, and load the model's weights into it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from osrerank.scoring.backends.networks.attention import BatchAttention
from osrerank.scoring.backends.networks.bert import (
    ACTIVATIONS,
    FAMILIES,
    BertEncoder,
    PackedEncoder,
    PackedNetwork,
    PackedTokenNetwork,
)
from osrerank.scoring.backends.networks.bert_weights import from_bert_weights, normalise_names
from osrerank.scoring.backends.networks.heads import HeadNetwork
from osrerank.scoring.backends.networks.modern_bert import encoder as modern_encoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import first_position_id
from osrerank.scoring.modular import modern_bert
from osrerank.scoring.modular.head import Head, HeadStep


def unsupported_reason(config: Mapping[str, Any], card: ModelCard, head: Head | None = None) -> str:
    """Return the reason why osrerank's forward pass cannot compute a model, or "" if it can.

    ``config`` is the content of ``config.json``, and ``card`` the model's card. ``head`` is None if the model is a
    transformers classifier.
    """
    model_type = config.get("model_type")
    is_modern_bert = model_type == modern_bert.MODEL_TYPE
    if model_type not in FAMILIES and not is_modern_bert:
        return f"model_type is {model_type}"
    architecture = (config.get("architectures") or ["not set"])[0]
    if not card.is_encoder and head is None and architecture not in _classifiers(model_type):
        return f"architecture is {architecture}"
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        return f"hidden_act is {activation}"
    if config.get("position_embedding_type", "absolute") != "absolute":
        return "its positions are relative"
    if config.get("is_decoder", False):
        return "it is a decoder"
    return modern_bert.unsupported_reason(config) if is_modern_bert else ""


def has_windows(config: Mapping[str, Any]) -> bool:
    """Return whether some layers attend within a window, as in ModernBERT."""
    return config.get("model_type") == modern_bert.MODEL_TYPE


def _classifiers(model_type: Any) -> Mapping[str, str]:
    """Return the name of the head's last matrix by class: ``{"BertForSequenceClassification": "classifier"}``."""
    if model_type == modern_bert.MODEL_TYPE:
        return {modern_bert.CLASSIFIER: "classifier"}
    return FAMILIES[model_type].classifiers


def load_packed(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    card: ModelCard,
    *,
    attention: BatchAttention,
    dtype: torch.dtype,
    head: Head | None = None,
) -> PackedNetwork:
    """Return a network that computes without padding, with a checkpoint's weights, in evaluation mode.

    The encoder is in ``dtype``, and the head in fp32. The model must be one that `unsupported_reason` accepts.

    Raises:
        KeyError: a weight is missing.
    """
    if card.is_encoder:
        head = card.vector_head
    network_class = PackedTokenNetwork if card.kind == "late-interaction" else PackedNetwork
    if config["model_type"] == modern_bert.MODEL_TYPE:
        encoder = _load_modern_bert(weights, config, dtype)
        head_network = HeadNetwork(head or modern_bert.build_classifier_head(config), weights)
        return network_class(encoder, attention, head_network).eval()
    family = FAMILIES[config["model_type"]]
    weights = normalise_names(weights, family.prefix)
    encoder = BertEncoder(config, first_position_id(config))
    encoder.load_state_dict(from_bert_weights(weights, config["num_hidden_layers"]))
    encoder.to(dtype)
    if head is None:
        classifier = family.classifiers[config["architectures"][0]]
        head = Head((HeadStep("dense", family.pooler, "tanh"), HeadStep("dense", classifier)))
    return network_class(encoder, attention, HeadNetwork(head, weights)).eval()


def _load_modern_bert(weights: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype) -> PackedEncoder:
    shape = modern_bert.ModernBertShape.from_config(config)
    max_tokens = int(config.get("max_position_embeddings", 8192))  # transformers' default
    encoder = modern_encoder.ModernBertEncoder(shape, max_tokens)
    encoder.load_state_dict(modern_encoder.from_transformers_weights(weights, encoder))
    return encoder.to(dtype)
