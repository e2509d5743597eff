"""Record a classifier's hidden states and attention logits, however its library computes attention.

Libraries return attention after the softmax, if at all. So the logits before it are computed here, from the
projections.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from osrerank.errors import ConfigError


class NetworkProbe:
    """Keeps the hidden states and attention logits of a network's last pass through `forward`; others leave no trace.

    Args:
        network: a `Classifier` of the BERT family.

    Raises:
        ConfigError: the network is of another family.
    """

    def __init__(self, network: Any) -> None:
        self.states: list[Tensor] = []
        self.attention: list[Tensor] = []
        self._projected: list[Tensor] = []
        self.is_watching = False
        try:
            encoder: Any = network.network.base_model
            layers = list(encoder.encoder.layer)
            self.layers = len(layers)
            self.heads = int(encoder.config.num_attention_heads)
            self.width = int(encoder.config.hidden_size) // self.heads
            projections = [(layer.attention.self.query, layer.attention.self.key) for layer in layers]
        except AttributeError as error:
            reason = f"{type(network).__name__} is not built like BERT ({error}); use method=logits"
            raise ConfigError(reason, setting="recipe.method") from None
        encoder.embeddings.register_forward_hook(self._keep_state)
        for query, key in projections:
            query.register_forward_hook(self._keep_projected)
            key.register_forward_hook(self._keep_projected)
        for layer in layers:
            layer.register_forward_hook(self._keep_layer)

    def clear(self) -> None:
        """Forget the states and logits of the last pass."""
        self.states, self.attention, self._projected = [], [], []

    def _keep_projected(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if self.is_watching:
            self._projected.append(output)

    def _keep_layer(self, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        if not self.is_watching:
            return
        key, query = self._projected.pop(), self._projected.pop()
        self.attention.append(self._logits(query, key))
        self.states.append(output[0] if isinstance(output, tuple) else output)

    def _keep_state(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if self.is_watching:
            self.states.append(output)

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scaled attention logits ``(n, heads, tokens, tokens)``, also for padding, which the losses ignore."""
        shape = (*query.shape[:2], self.heads, self.width)
        rows, columns = (states.reshape(shape).transpose(1, 2) for states in (query, key))
        return rows @ columns.transpose(2, 3) * (1 / math.sqrt(self.width))


def forward(network: nn.Module, probe: NetworkProbe, inputs: dict[str, Tensor], *, learn: bool) -> Tensor:
    """Clear the probe, run the network with or without a gradient, and return its logits."""
    probe.clear()
    probe.is_watching = True
    try:
        with torch.set_grad_enabled(learn):
            logits: Tensor = network(**inputs)
    finally:
        probe.is_watching = False
    return logits
