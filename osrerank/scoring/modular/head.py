"""What follows an encoder: how its states are pooled, and the steps from there to the logits or the vector."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Mode = Literal["cls", "mean", "max", "weightedmean", "lasttoken"]
Kind = Literal["dense", "norm", "unit", "first"]
Activation = Literal["", "gelu", "relu", "sigmoid", "silu", "tanh"]


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A step from one vector of each sequence to the next.

    Attributes:
        kind: ``dense`` is a product, a bias and an activation; ``norm`` is LayerNorm; ``unit`` divides by the
            Euclidean norm; ``first`` keeps the first numbers.
        name: the name of its weights, ``NAME.weight`` and ``NAME.bias``; a ``unit`` or ``first`` has none.
        activation: the activation of a ``dense``; empty for none.
        epsilon: the epsilon of a ``norm``.
        has_bias: whether a ``dense`` or ``norm`` has a bias.
        size: how many numbers a ``first`` keeps.
    """

    kind: Kind
    name: str = ""
    activation: Activation = ""
    epsilon: float = 1e-5
    has_bias: bool = True
    size: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (("kind", self.kind, Kind), ("activation", self.activation, Activation)):
            if value not in get_args(known):
                raise ValueError(f"a module's {name} is {value!r}; it must be one of {', '.join(get_args(known))}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields that do not have their default; `HeadStep` takes them back."""
        defaults = {one.name: one.default for one in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


@dataclass(frozen=True, slots=True)
class Head:
    """From an encoder's last states to logits, or to a vector.

    Attributes:
        steps: in order.
        pooling: a sequence's vector is the state of its first token, the mean or the largest values of all, the mean
            in which the n-th token counts n times, or the state of the last token; several lie side by side. With none,
            each token has a vector of its own.
    """

    steps: tuple[HeadStep, ...]
    pooling: tuple[Mode, ...] = ("cls",)
