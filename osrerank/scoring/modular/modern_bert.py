"""A ModernBERT's sizes, windows and rotations, from the ``config.json`` of transformers 4 or 5."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from osrerank.scoring.modular.head import Head, HeadStep

MODEL_TYPE = "modernbert"
CLASSIFIER = "ModernBertForSequenceClassification"
PREFIX = "model."
"""Of the encoder's weights in a classifier."""
FULL, SLIDING = "full_attention", "sliding_attention"
EMBEDDINGS = {"word": "embeddings.tok_embeddings", "norm": "embeddings.norm", "final_norm": "final_norm"}
"""Our names of the parts of an encoder, and theirs."""
LAYER = {
    "attention_norm": "attn_norm",
    "projections": "attn.Wqkv",
    "attended": "attn.Wo",
    "norm": "mlp_norm",
    "widen": "mlp.Wi",
    "narrow": "mlp.Wo",
}


@dataclass(frozen=True, slots=True)
class ModernBertShape:
    """The sizes and layers of a ModernBERT encoder.

    Attributes:
        hidden, heads, inner, vocabulary: sizes; ``inner`` of each half of the gated layer.
        epsilon: the epsilon of the norms.
        windows: for each layer, how many positions to either side a row sees; None for all.
        thetas: for each layer, the base of its rotations' periods.
        has_norm_bias, has_attention_bias, has_mlp_bias: which parts have biases.
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
        """Read a config that `obstacle` finds nothing against."""
        kinds, reach = _kinds(config), int(config.get("local_attention", 128)) // 2
        thetas = {kind: _theta(config, kind) for kind in (FULL, SLIDING)}
        return cls(
            hidden=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            inner=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            epsilon=float(config.get("norm_eps", 1e-5)),
            windows=tuple(reach if kind == SLIDING else None for kind in kinds),
            thetas=tuple(thetas[kind] for kind in kinds),
            has_norm_bias=bool(config.get("norm_bias", False)),
            has_attention_bias=bool(config.get("attention_bias", False)),
            has_mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @property
    def width(self) -> int:
        """Columns of a head."""
        return self.hidden // self.heads


def obstacle(config: Mapping[str, Any]) -> str:
    """Return why this package cannot compute a config's encoder or classifier, or nothing."""
    scalings = [config.get("rope_scaling") or {}, *_rotations(config).values()]
    kinds = {str(one.get("rope_type") or one.get("type") or "default") for one in scalings}
    others = {*_kinds(config)} - {FULL, SLIDING}
    activations = {name: config.get(name, "gelu") for name in ("hidden_activation", "classifier_activation")}
    reasons = {f"{name} is {value}": value != "gelu" for name, value in activations.items()}
    reasons |= {
        f"its rotations are {', '.join(sorted(kinds))}": kinds != {"default"},
        f"layer_types has {', '.join(sorted(others))}": bool(others),
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


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """Return what each layer's attention is: transformers 5 lists it, 4 counts."""
    layers, every = int(config["num_hidden_layers"]), int(config.get("global_attn_every_n_layers") or 3)
    listed = config.get("layer_types") or [SLIDING if layer % every else FULL for layer in range(layers)]
    return [str(kind) for kind in listed]


def _rotations(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return transformers 5's settings of the rotations for each kind of layer; 4 has none."""
    found: Mapping[str, Any] = config.get("rope_parameters") or {}
    return {kind: found[kind] or {} for kind in (FULL, SLIDING) if kind in found}


def _theta(config: Mapping[str, Any], kind: str) -> float:
    given = _rotations(config).get(kind, {}).get("rope_theta")
    if given is None:
        every = config.get("global_rope_theta", 160000.0)
        local = config.get("local_rope_theta", 10000.0)
        given = every if kind == FULL or local is None else local
    return float(given)
