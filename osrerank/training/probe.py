"""Record a classifier's hidden states and attention logits during a forward pass, for distillation.

Libraries return attention only after the softmax, if at all. A probe therefore records the query and key projections,
and computes the logits before the softmax from them.
"""

import math
from typing import Any

from torch import Tensor, nn

from osrerank.errors import ConfigError


class NetworkProbe:
    """Records the hidden states and attention logits of a BERT `Classifier`.

    Attributes:
        states: the embeddings, then each layer's states ``(n, tokens, hidden)``, from the last call of `run`.
        attention: each layer's attention logits ``(n, heads, tokens, tokens)``, from the last call of `run`.
        layers: the number of layers.
        heads: the number of attention heads in a layer.
        width: the number of dimensions of a head.

    Raises:
        ConfigError: the network is not built like BERT.
    """

    def __init__(self, classifier: Any) -> None:
        self.states: list[Tensor] = []
        self.attention: list[Tensor] = []
        self._projections: list[Tensor] = []
        self._classifier = classifier
        self._is_recording = False
        try:
            encoder: Any = classifier.network.base_model
            layers = list(encoder.encoder.layer)
            self.layers = len(layers)
            self.heads = int(encoder.config.num_attention_heads)
            self.width = int(encoder.config.hidden_size) // self.heads
            projections = [(layer.attention.self.query, layer.attention.self.key) for layer in layers]
        except AttributeError:
            reason = f"{type(classifier).__name__} is not built like BERT; set method=logits"
            raise ConfigError(reason, setting="recipe.method") from None
        encoder.embeddings.register_forward_hook(self._record_embeddings)
        for query, key in projections:
            query.register_forward_hook(self._record_projection)
            key.register_forward_hook(self._record_projection)
        for layer in layers:
            layer.register_forward_hook(self._record_layer)

    def run(self, inputs: dict[str, Tensor]) -> Tensor:
        """Run the network on the inputs, record the pass, and return the logits."""
        self.states = []
        self.attention = []
        self._projections = []
        self._is_recording = True
        try:
            logits: Tensor = self._classifier(**inputs)
        finally:
            self._is_recording = False
        return logits

    def _record_projection(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if self._is_recording:
            self._projections.append(output)

    def _record_layer(self, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        if not self._is_recording:
            return
        # The hooks in this layer have appended its query, and then its key.
        key = self._projections.pop()
        query = self._projections.pop()
        self.attention.append(self._attention_logits(query, key))
        self.states.append(output[0] if isinstance(output, tuple) else output)

    def _record_embeddings(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if self._is_recording:
            self.states.append(output)

    def _attention_logits(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scaled logits ``(n, heads, tokens, tokens)``. The losses ignore the logits of padding."""
        shape = (*query.shape[:2], self.heads, self.width)
        queries = query.reshape(shape).transpose(1, 2)
        keys = key.reshape(shape).transpose(1, 2)
        return queries @ keys.transpose(2, 3) * (1 / math.sqrt(self.width))
