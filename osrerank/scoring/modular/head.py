"""Describe a model's head: how it pools the encoder's states, and computes the logits or the vector from them."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Mode = Literal["cls", "mean", "max", "weightedmean", "lasttoken"]
"""A pooling mode; see `Head.pooling`."""
Kind = Literal["dense", "norm", "unit", "first"]
"""A kind of step; see `HeadStep.kind`."""
Activation = Literal["", "gelu", "relu", "sigmoid", "silu", "tanh"]
"""An activation function. "" means none."""


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A step after the pooling, which computes a vector from the previous step's vector.

    Attributes:
        kind: ``dense`` multiplies by a matrix, adds a bias and applies an activation. ``norm`` is LayerNorm. ``unit``
            divides by the Euclidean norm. ``first`` keeps the first values.
        name: name of the weights without ``.weight`` and ``.bias``, such as ``2_Dense.linear``. "" for ``unit`` and
            ``first``, which have no weights.
        activation: activation of a ``dense``.
        epsilon: epsilon of a ``norm``.
        has_bias: whether a ``dense`` or ``norm`` has a bias.
        size: number of values that a ``first`` keeps.
    """

    kind: Kind
    name: str = ""
    activation: Activation = ""
    epsilon: float = 1e-5
    has_bias: bool = True
    size: int = 0

    def __post_init__(self) -> None:
        choices_by_name = {"kind": get_args(Kind), "activation": get_args(Activation)}
        for name, choices in choices_by_name.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"a module's {name} is {value!r}; it must be one of {', '.join(choices)}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: ``{"kind": "norm", "name": "3_LayerNorm.norm"}``."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


@dataclass(frozen=True, slots=True)
class Head:
    """The computation that turns an encoder's last states into logits, or into a vector.

    Attributes:
        steps: steps after the pooling, in order.
        pooling: pooling modes, whose vectors are concatenated. Empty if each token gets a vector (late interaction).
            ``cls`` uses the state of the first token, and ``lasttoken`` that of the last. ``mean`` and ``max`` are the
            mean and the maximum of all tokens' states. In ``weightedmean``, the n-th token has the weight n.
    """

    steps: tuple[HeadStep, ...]
    pooling: tuple[Mode, ...] = ("cls",)
