"""Read a ModernBERT's sizes, windows and rotations from the ``config.json`` of transformers 4 or 5."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from osrerank.scoring.modular.head import Head, HeadStep

MODEL_TYPE = "modernbert"
CLASSIFIER = "ModernBertForSequenceClassification"
PREFIX = "model."
"""Prefix of the encoder's weights in a classifier."""
FULL, SLIDING = "full_attention", "sliding_attention"
EMBEDDINGS = {"word": "embeddings.tok_embeddings", "norm": "embeddings.norm", "final_norm": "final_norm"}
"""Our name of an encoder's module outside the layers -> transformers' name."""
LAYER = {
    "attention_norm": "attn_norm",
    "projections": "attn.Wqkv",
    "attended": "attn.Wo",
    "norm": "mlp_norm",
    "widen": "mlp.Wi",
    "narrow": "mlp.Wo",
}
"""Our name of a module in a layer -> transformers' name."""


@dataclass(frozen=True, slots=True)
class ModernBertShape:
    """The sizes and layers of a ModernBERT encoder.

    Attributes:
        hidden: size of a token's state.
        heads: number of attention heads.
        inner: size of each half of the gated layer.
        vocabulary: number of token ids.
        epsilon: epsilon of the norms.
        windows: for each layer, how many positions to either side a token attends to; None for all positions.
        thetas: for each layer, the base of the periods of its rotations.
        has_norm_bias: whether the norms have biases.
        has_attention_bias: whether the attention's projections have biases.
        has_mlp_bias: whether the gated layer has biases.
    """

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    epsilon: float
    windows: tuple[int | None, ...]
    thetas: tuple[float, ...]
    has_norm_bias: bool = False
    has_attention_bias: bool = False
    has_mlp_bias: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the shape in a config for which `unsupported_reason` is empty."""
        layer_types, reach = _layer_types(config), int(config.get("local_attention", 128)) // 2
        thetas = {layer_type: _theta(config, layer_type) for layer_type in (FULL, SLIDING)}
        return cls(
            hidden=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            inner=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            epsilon=float(config.get("norm_eps", 1e-5)),
            windows=tuple(reach if layer_type == SLIDING else None for layer_type in layer_types),
            thetas=tuple(thetas[layer_type] for layer_type in layer_types),
            has_norm_bias=bool(config.get("norm_bias", False)),
            has_attention_bias=bool(config.get("attention_bias", False)),
            has_mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @property
    def width(self) -> int:
        """Number of columns of a head."""
        return self.hidden // self.heads


def unsupported_reason(config: Mapping[str, Any]) -> str:
    """Return why osrerank cannot compute a config's encoder or classifier; empty if it can."""
    scalings = [config.get("rope_scaling") or {}, *_rotations(config).values()]
    rotation_types = {str(scaling.get("rope_type") or scaling.get("type") or "default") for scaling in scalings}
    unknown_types = {*_layer_types(config)} - {FULL, SLIDING}
    activations = {name: config.get(name, "gelu") for name in ("hidden_activation", "classifier_activation")}
    reasons = {f"{name} is {value}": value != "gelu" for name, value in activations.items()}
    reasons |= {
        f"its rotations are {', '.join(sorted(rotation_types))}": rotation_types != {"default"},
        f"layer_types has {', '.join(sorted(unknown_types))}": bool(unknown_types),
        "local_attention is below 2": int(config.get("local_attention", 128)) < 2,
        "its heads have an odd width": int(config["hidden_size"]) // int(config["num_attention_heads"]) % 2 == 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def classifier_head(config: Mapping[str, Any]) -> Head:
    """Return the head of a ``ModernBertForSequenceClassification``."""
    epsilon, has_norm_bias = float(config.get("norm_eps", 1e-5)), bool(config.get("norm_bias", False))
    steps = (
        HeadStep("dense", "head.dense", "gelu", has_bias=bool(config.get("classifier_bias", False))),
        HeadStep("norm", "head.norm", epsilon=epsilon, has_bias=has_norm_bias),
        HeadStep("dense", "classifier"),
    )
    return Head(steps, ("mean",) if config.get("classifier_pooling", "cls") == "mean" else ("cls",))


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    """Return the attention type of each layer; transformers 5 lists the types, 4 has the period of the full ones."""
    layers, period = int(config["num_hidden_layers"]), int(config.get("global_attn_every_n_layers") or 3)
    layer_types = config.get("layer_types") or [SLIDING if layer % period else FULL for layer in range(layers)]
    return [str(layer_type) for layer_type in layer_types]


def _rotations(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return transformers 5's settings of the rotations for each layer type; empty for transformers 4."""
    parameters: Mapping[str, Any] = config.get("rope_parameters") or {}
    return {layer_type: parameters[layer_type] or {} for layer_type in (FULL, SLIDING) if layer_type in parameters}


def _theta(config: Mapping[str, Any], layer_type: str) -> float:
    theta = _rotations(config).get(layer_type, {}).get("rope_theta")
    if theta is not None:
        return float(theta)
    local_theta = config.get("local_rope_theta", 10000.0)
    if layer_type == SLIDING and local_theta is not None:
        return float(local_theta)
    return float(config.get("global_rope_theta", 160000.0))
