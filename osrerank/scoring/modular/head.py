"""What follows an encoder: how its states are pooled, and the steps from there to the logits."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["cls", "mean", "max", "lasttoken"]
Kind = Literal["dense", "norm", "unit"]
Activation = Literal["", "gelu", "relu", "sigmoid", "silu", "tanh"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one vector of each sequence to the next.

    Attributes:
        kind: ``dense`` is a product, a bias and an activation; ``norm`` is LayerNorm; ``unit`` divides by the
            Euclidean norm.
        name: of its weights, ``NAME.weight`` and ``NAME.bias``; a ``unit`` has none.
        activation: of a ``dense``; empty for none.
        epsilon: of a ``norm``.
        has_bias: whether a ``dense`` or ``norm`` has a bias.
    """

    kind: Kind
    name: str = ""
    activation: Activation = ""
    epsilon: float = 1e-5
    has_bias: bool = True


@dataclass(frozen=True, slots=True)
class Head:
    """From an encoder's last states to logits.

    Attributes:
        steps: in order.
        pooling: a sequence's vector is the state of its first token, the mean or the largest values of all, or the
            state of its last token; several lie side by side.
    """

    steps: tuple[Step, ...]
    pooling: tuple[Mode, ...] = ("cls",)
