"""Read a ModernBERT's sizes, attention windows and RoPE bases from the ``config.json`` of transformers 4 or 5."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from osrerank.scoring.modular.head import Head, HeadStep

MODEL_TYPE = "modernbert"
CLASSIFIER = "ModernBertForSequenceClassification"
CLASSIFIER_PREFIX = "model."
"""Prefix of the encoder's weights in a classifier."""
FULL_ATTENTION = "full_attention"
WINDOW_ATTENTION = "sliding_attention"
EMBEDDINGS = {"word": "embeddings.tok_embeddings", "norm": "embeddings.norm", "final_norm": "final_norm"}
"""Our name of a module outside the layers -> transformers' name."""
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
        inner: size of each half of the gated feed-forward network.
        vocabulary: number of token ids.
        epsilon: epsilon of the norms.
        windows: for each layer, the number of positions on either side that a token attends to, such as 64. None if
            the layer attends to the whole sequence.
        rope_bases: for each layer, the RoPE base (``rope_theta``).
        has_norm_bias: whether the norms have biases.
        has_attention_bias: whether the attention's projections have biases.
        has_mlp_bias: whether the gated feed-forward network has biases.
    """

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    epsilon: float
    windows: tuple[int | None, ...]
    rope_bases: tuple[float, ...]
    has_norm_bias: bool = False
    has_attention_bias: bool = False
    has_mlp_bias: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the shape from the content of ``config.json``, which `unsupported_reason` must have accepted."""
        layer_types = _list_layer_types(config)
        window = int(config.get("local_attention", 128)) // 2
        rope_bases = {layer_type: _read_rope_base(config, layer_type) for layer_type in set(layer_types)}
        return cls(
            hidden=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            inner=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            epsilon=float(config.get("norm_eps", 1e-5)),
            windows=tuple(window if layer_type == WINDOW_ATTENTION else None for layer_type in layer_types),
            rope_bases=tuple(rope_bases[layer_type] for layer_type in layer_types),
            has_norm_bias=bool(config.get("norm_bias", False)),
            has_attention_bias=bool(config.get("attention_bias", False)),
            has_mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @property
    def width(self) -> int:
        """The number of columns of an attention head."""
        return self.hidden // self.heads


def unsupported_reason(config: Mapping[str, Any]) -> str:
    """Return the reason why osrerank cannot compute a config's encoder or classifier, or "" if it can."""
    for name in ("hidden_activation", "classifier_activation"):
        activation = config.get(name, "gelu")
        if activation != "gelu":
            return f"{name} is {activation}"
    # in a config of transformers 4, and in one of transformers 5
    scalings = [config.get("rope_scaling") or {}, *_read_rope_parameters(config).values()]
    rope_types = {str(scaling.get("rope_type") or scaling.get("type") or "default") for scaling in scalings}
    if rope_types != {"default"}:
        return f"rope_type is {', '.join(sorted(rope_types))}"
    unknown_types = {*_list_layer_types(config)} - {FULL_ATTENTION, WINDOW_ATTENTION}
    if unknown_types:
        return f"layer_types contains {', '.join(sorted(unknown_types))}"
    if int(config.get("local_attention", 128)) < 2:
        return "local_attention is below 2"
    has_odd_width = int(config["hidden_size"]) // int(config["num_attention_heads"]) % 2 == 1
    return "its heads have an odd width" if has_odd_width else ""


def build_classifier_head(config: Mapping[str, Any]) -> Head:
    """Return the head of a ``ModernBertForSequenceClassification``."""
    epsilon = float(config.get("norm_eps", 1e-5))
    has_norm_bias = bool(config.get("norm_bias", False))
    steps = (
        HeadStep("dense", "head.dense", "gelu", has_bias=bool(config.get("classifier_bias", False))),
        HeadStep("norm", "head.norm", epsilon=epsilon, has_bias=has_norm_bias),
        HeadStep("dense", "classifier"),
    )
    return Head(steps, ("mean",) if config.get("classifier_pooling", "cls") == "mean" else ("cls",))


def _list_layer_types(config: Mapping[str, Any]) -> list[str]:
    """Return the attention type of each layer.

    A config of transformers 5 lists the types. In a config of transformers 4, the first layer and then every n-th one
    has full attention, and the others attend within a window.
    """
    if config.get("layer_types"):
        return [str(layer_type) for layer_type in config["layer_types"]]
    layers = range(int(config["num_hidden_layers"]))
    period = int(config.get("global_attn_every_n_layers") or 3)
    return [WINDOW_ATTENTION if layer % period else FULL_ATTENTION for layer in layers]


def _read_rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return layer type -> RoPE settings: ``{"full_attention": {"rope_theta": 160000.0}}``.

    The mapping is empty for a config of transformers 4.
    """
    parameters: Mapping[str, Any] = config.get("rope_parameters") or {}
    return {
        layer_type: parameters[layer_type] or {}
        for layer_type in (FULL_ATTENTION, WINDOW_ATTENTION)
        if layer_type in parameters
    }


def _read_rope_base(config: Mapping[str, Any], layer_type: str) -> float:
    """Return the RoPE base of layers of this type, from a config of transformers 5 or 4."""
    base = _read_rope_parameters(config).get(layer_type, {}).get("rope_theta")
    if base is not None:
        return float(base)
    local_base = config.get("local_rope_theta", 10000.0)  # null stands for the global base
    if layer_type == WINDOW_ATTENTION and local_base is not None:
        return float(local_base)
    return float(config.get("global_rope_theta", 160000.0))
