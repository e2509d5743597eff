"""What follows an encoder, in torch: pooling of its states, and the steps to the logits. All in fp32."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.backends.networks.attention import Bounds
from osrerank.scoring.modular.head import Activation, Head, HeadStep, Mode

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "": lambda states: states,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class Dense(nn.Module):
    """A product, its bias if it has one, and an activation."""

    def __init__(self, step: HeadStep, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self._activation = ACTIVATIONS[step.activation]

    def forward(self, states: Tensor) -> Tensor:
        """Return the next vectors ``(n, outputs)``."""
        return self._activation(functional.linear(states, self.weight, self.bias))


class Norm(nn.Module):
    """LayerNorm, with a bias if it has one."""

    def __init__(self, step: HeadStep, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self._epsilon = step.epsilon

    def forward(self, states: Tensor) -> Tensor:
        """Return the normed vectors."""
        return functional.layer_norm(states, self.weight.shape, self.weight, self.bias, self._epsilon)


class Unit(nn.Module):
    """Divides each vector by its norm."""

    def forward(self, states: Tensor) -> Tensor:
        """Return vectors of norm 1."""
        return functional.normalize(states, dim=1)


class First(nn.Module):
    """Keeps the first numbers of each vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, states: Tensor) -> Tensor:
        """Return the first numbers ``(n, size)``."""
        return states[:, : self._size]


class HeadNetwork(nn.Module):
    """Pools an encoder's states and computes the logits, or the vectors.

    Args:
        head: what it is.
        weights: its steps' ``NAME.weight`` and ``NAME.bias``, among others.

    Raises:
        KeyError: a weight is missing.
    """

    def __init__(self, head: Head, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.pooling = head.pooling
        self.steps = nn.Sequential(*(_module(step, weights) for step in head.steps))

    @property
    def reads_first_alone(self) -> bool:
        """Whether of all states it reads the first of each sequence alone."""
        return self.pooling == ("cls",)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the logits ``(n, labels)`` or vectors ``(n, dimensions)`` of pooled states."""
        computed: Tensor = self.steps(vectors)
        return computed

    def pooled(self, states: Tensor, bounds: Bounds) -> Tensor:
        """Return each sequence's vector ``(n, width)``; without pooling, the states themselves.

        Args:
            states: packed, ``(tokens, hidden)``.
            bounds: where the sequences lie.
        """
        if not self.pooling:
            return states
        lengths = bounds.offsets.diff().long()
        return _beside(
            self.pooling,
            {
                "cls": lambda: states.index_select(0, bounds.offsets[:-1]),
                "mean": lambda: torch.segment_reduce(states, "mean", lengths=lengths, unsafe=True),
                "max": lambda: torch.segment_reduce(states, "max", lengths=lengths, unsafe=True),
                "weightedmean": lambda: _weighted(states, bounds, lengths),
                "lasttoken": lambda: states.index_select(0, bounds.offsets[1:] - 1),
            },
        )

    def pooled_grid(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return each row's vector ``(n, width)``.

        Args:
            states: padded on the right, ``(n, tokens, hidden)``.
            mask: 1 for tokens, 0 for padding: ``(n, tokens)``.
        """
        kept = mask.unsqueeze(2).to(states.dtype)
        return _beside(
            self.pooling,
            {
                "cls": lambda: states[:, 0],
                "mean": lambda: (states * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1),
                "max": lambda: states.masked_fill(kept == 0, torch.finfo(states.dtype).min).amax(dim=1),
                "weightedmean": lambda: (states * (counts := kept.cumsum(1) * kept)).sum(dim=1) / counts.sum(dim=1),
                "lasttoken": lambda: _last(states, mask),
            },
        )


def _weighted(states: Tensor, bounds: Bounds, lengths: Tensor) -> Tensor:
    """Return the means of packed states in which the n-th token of a sequence counts n times, in fp32."""
    starts = bounds.offsets[:-1].long().repeat_interleave(lengths)
    counts = torch.arange(1, len(states) + 1, device=states.device) - starts
    total = torch.segment_reduce(states.float() * counts[:, None], "sum", lengths=lengths, unsafe=True)
    return total / (lengths * (lengths + 1) / 2)[:, None]


def _last(states: Tensor, mask: Tensor) -> Tensor:
    indices = (mask.long().sum(dim=1) - 1)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, indices).squeeze(1)


def _beside(modes: Sequence[Mode], ways: Mapping[Mode, Callable[[], Tensor]]) -> Tensor:
    found = [ways[mode]() for mode in modes]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _module(step: HeadStep, weights: Mapping[str, Tensor]) -> nn.Module:
    if step.kind == "unit":
        return Unit()
    if step.kind == "first":
        return First(step.size)
    parts = [weights[f"{step.name}.{part}"] for part in ("weight", "bias")[: 1 + step.has_bias]]
    kind = Dense if step.kind == "dense" else Norm
    return kind(step, *(part.float().clone() for part in parts))  # in memory of its own, as other parameters lie
