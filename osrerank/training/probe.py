"""A network's states and attention logits, for both layouts and any attention.

Libraries return attention after the softmax, if at all; here the logits before it are computed from the projections.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.scoring.networks.cross_bias import CrossBiasEncoder, Pooled, shared


class Probe:
    """Keeps the states and attention logits of a network's last pass by `forward`, and nothing of other passes.

    For the layout ``cross-bias`` it also keeps the pooling: the states are those of the pooled rows.

    Args:
        network: a `Classifier` of the BERT family, or a `CrossBiasEncoder`.

    Raises:
        ConfigError: the network is of another family.
    """

    def __init__(self, network: nn.Module) -> None:
        self.states: list[Tensor] = []
        self.attention: list[Tensor] = []
        self.pooled: Pooled | None = None
        self._projected: list[Tensor] = []
        self.is_watching = False
        if isinstance(network, CrossBiasEncoder):
            first: Any = network.layers[0]
            self.heads, self.width = int(first.heads), int(first.width)
            self._watch_cross_bias(network)
        else:
            self._watch_bert(network)

    def clear(self) -> None:
        """Drop the last forward pass."""
        self.states, self.attention, self.pooled, self._projected = [], [], None, []

    def pool(self, states: Tensor) -> Tensor:
        """Return another network's states ``(n, tokens, hidden)`` pooled as this one's in its last pass."""
        return shared(None if self.pooled is None else self.pooled.shares, states)

    def _watch_cross_bias(self, network: CrossBiasEncoder) -> None:
        layers: list[Any] = list(network.layers)
        self.layers = len(layers)
        network.pool.register_forward_hook(self._keep_pooled)
        for layer in layers:
            layer.projections.register_forward_hook(self._keep_projected)
            layer.register_forward_hook(self._keep_layer)

    def _keep_pooled(self, _module: nn.Module, _inputs: Any, made: Pooled) -> None:
        if self.is_watching:
            self.pooled = made
            self.states.append(made.states)

    def _keep_projected(self, _module: nn.Module, _inputs: Any, made: Tensor) -> None:
        if self.is_watching:
            self._projected.append(made)

    def _keep_layer(self, _layer: nn.Module, inputs: tuple[Tensor, Tensor], made: Tensor) -> None:
        if not self.is_watching:
            return
        query, key, _value = self._projected.pop().chunk(3, dim=2)
        self.attention.append(self._logits(query, key) + inputs[1])
        self.states.append(made)

    def _watch_bert(self, network: Any) -> None:
        try:
            encoder: Any = network.network.base_model
            layers = list(encoder.encoder.layer)
            self.layers = len(layers)
            self.heads = int(encoder.config.num_attention_heads)
            self.width = int(encoder.config.hidden_size) // self.heads
            projections = [(layer.attention.self.query, layer.attention.self.key) for layer in layers]
        except AttributeError as error:
            reason = f"{type(network).__name__} is not built as BERT is ({error}); distil it by its logits alone"
            raise ConfigError(reason, setting="recipe.method") from None
        encoder.embeddings.register_forward_hook(self._keep_state)
        for query, key in projections:
            query.register_forward_hook(self._keep_projected)
            key.register_forward_hook(self._keep_projected)
        for layer in layers:
            layer.register_forward_hook(self._keep_bert_layer)

    def _keep_bert_layer(self, _layer: nn.Module, _inputs: Any, made: Any) -> None:
        if not self.is_watching:
            return
        key, query = self._projected.pop(), self._projected.pop()
        self.attention.append(self._logits(query, key))
        self.states.append(made[0] if isinstance(made, tuple) else made)

    def _keep_state(self, _module: nn.Module, _inputs: Any, made: Tensor) -> None:
        if self.is_watching:
            self.states.append(made)

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scaled logits ``(n, heads, tokens, tokens)``; padding is not masked, because losses ignore it."""
        shape = (*query.shape[:2], self.heads, self.width)
        rows, columns = (states.reshape(shape).transpose(1, 2) for states in (query, key))
        return rows @ columns.transpose(2, 3) * (1 / math.sqrt(self.width))


def forward(network: nn.Module, probe: Probe, inputs: dict[str, Tensor], *, learn: bool) -> Tensor:
    """Run the network with its probe cleared, with or without a gradient, and return its logits."""
    probe.clear()
    probe.is_watching = True
    try:
        with torch.set_grad_enabled(learn):
            logits: Tensor = network(**inputs)
    finally:
        probe.is_watching = False
    return logits
