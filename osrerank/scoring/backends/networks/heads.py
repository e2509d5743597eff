"""Compute a model's head in torch, in fp32: pool the encoder's states, and turn them into logits or vectors."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.backends.networks.attention import Bounds
from osrerank.scoring.modular.head import Activation, Head, HeadStep, Mode

ACTIVATIONS: Mapping[Activation, type[nn.Module]] = {
    "": nn.Identity,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
"""`HeadStep.activation` -> torch's module."""


class Normalize(nn.Module):
    """Divides each vector by its norm."""

    def forward(self, states: Tensor) -> Tensor:
        return functional.normalize(states, dim=1)


class FirstValues(nn.Module):
    """Keeps the first values of each vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, states: Tensor) -> Tensor:
        return states[:, : self._size]


class HeadNetwork(nn.Module):
    """A head, which pools an encoder's states and computes logits or vectors from them.

    Raises:
        KeyError: the ``NAME.weight`` or ``NAME.bias`` of a step is missing.
    """

    def __init__(self, head: Head, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.pooling = head.pooling
        self.steps = nn.Sequential(*(_build_module(step, weights) for step in head.steps))

    @property
    def needs_first_only(self) -> bool:
        """Whether the head needs only the state of each sequence's first token."""
        return self.pooling == ("cls",)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the logits ``(n, labels)`` or vectors ``(n, dimensions)`` of pooled states."""
        computed: Tensor = self.steps(vectors)
        return computed

    def pool(self, states: Tensor, bounds: Bounds) -> Tensor:
        """Pool packed states ``(tokens, hidden)`` to vectors ``(n, width)``. A head without pooling changes nothing."""
        if not self.pooling:
            return states
        return torch.cat([_pool_packed(states, bounds, mode) for mode in self.pooling], dim=1)

    def pool_padded(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool states ``(n, tokens, hidden)`` to vectors ``(n, width)``. The mask ``(n, tokens)`` is 0 on padding."""
        return torch.cat([pool_padded(states, mask, mode) for mode in self.pooling], dim=1)


def _pool_packed(states: Tensor, bounds: Bounds, mode: Mode) -> Tensor:
    """Pool packed states ``(tokens, hidden)`` to vectors ``(n, hidden)`` in one pooling mode."""
    if mode == "cls":
        return states.index_select(0, bounds.offsets[:-1])
    if mode == "lasttoken":
        return states.index_select(0, bounds.offsets[1:] - 1)
    lengths = bounds.offsets.diff().long()
    reduce = partial(torch.segment_reduce, lengths=lengths, unsafe=True)  # unsafe: the lengths are not checked again
    if mode == "weightedmean":
        starts = bounds.offsets[:-1].long().repeat_interleave(lengths)
        weights = torch.arange(1, len(states) + 1, device=states.device) - starts  # 1, 2, ... in each sequence
        weight_sums = lengths * (lengths + 1) / 2
        return reduce(states.float() * weights[:, None], "sum") / weight_sums[:, None]
    return reduce(states, mode)  # "mean" or "max"


def pool_padded(states: Tensor, mask: Tensor, mode: Mode) -> Tensor:
    """Pool states ``(n, tokens, hidden)`` to vectors ``(n, hidden)``. The mask ``(n, tokens)`` is 0 on padding."""
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        last_positions = mask.long().sum(dim=1) - 1
        indices = last_positions[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, indices).squeeze(1)
    is_token = mask.unsqueeze(2).to(states.dtype)
    if mode == "max":
        return states.masked_fill(is_token == 0, torch.finfo(states.dtype).min).amax(dim=1)
    # For weightedmean, the weights of a sequence's tokens are 1, 2, 3, ...
    weights = is_token.cumsum(1) * is_token if mode == "weightedmean" else is_token
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _build_module(step: HeadStep, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a head's step as a module with its weights ``NAME.weight`` and ``NAME.bias``."""
    if step.kind == "unit":
        return Normalize()  # to the norm 1
    if step.kind == "first":
        return FirstValues(step.size)
    names = ("weight", "bias") if step.has_bias else ("weight",)
    parameters = {name: weights[f"{step.name}.{name}"].float() for name in names}
    if step.kind == "norm":
        norm = nn.LayerNorm(parameters["weight"].shape, eps=step.epsilon, bias=step.has_bias)
        norm.load_state_dict(parameters)
        return norm
    outputs, inputs = parameters["weight"].shape
    linear = nn.Linear(inputs, outputs, bias=step.has_bias)
    linear.load_state_dict(parameters)
    return nn.Sequential(linear, ACTIVATIONS[step.activation]())
