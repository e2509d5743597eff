"""What a ``config.json`` leaves out: transformers' defaults of the families that osrerank reads itself."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_MODERN_BERT = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "pad_token_id": 50283,
}
"""The others are in `osrerank.scoring.networks.modern_bert.shape`, by the version of transformers."""
_ELECTRA = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
_DEBERTA = {
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bert": _BERT,
        "roberta": {**_BERT, "vocab_size": 50265, "pad_token_id": 1},
        "xlm-roberta": {**_BERT, "pad_token_id": 1},
        "electra": {**_BERT, **_ELECTRA},
        "deberta-v2": {**_BERT, **_DEBERTA},
        "distilbert": {"vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0},
        "modernbert": _MODERN_BERT,
    }
)
"""By ``model_type``; a test compares them with transformers' own."""


def filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with transformers' defaults for the keys that it leaves out; of other families as it is."""
    return {**DEFAULTS.get(str(config.get("model_type")), {}), **config}
