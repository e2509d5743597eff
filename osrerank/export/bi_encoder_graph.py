"""Build the ONNX graph of a BERT bi-encoder, without padding: all texts of a batch have one length."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from osrerank.export.graph import TOKENS, BertGraph, Weights
from osrerank.scoring.card import ModelCard


def build_encoder(weights: Weights, config: Mapping[str, Any], card: ModelCard) -> Any:
    """Return the graph that encodes texts, as an ``onnx.ModelProto`` in fp32.

    Its input is ``input_ids``, int64 ``(n, tokens)``; rows of a batch must have one length. Its output ``vector`` is
    float32 ``(n, hidden)``, of norm 1. With [CLS] pooling, the last layer computes only the [CLS] row. The graph is
    tested against `osrerank.scoring.backends.networks.bi_encoder`.

    Args:
        weights: name in transformers -> array; the prefix ``bert.`` is optional.
        config: the model's ``config.json``; see `osrerank.export.graph.can_build`.
        card: a bi-encoder's.

    Raises:
        KeyError: a weight is missing.
    """
    return _Encoder({name.removeprefix("bert."): array for name, array in weights.items()}, config, card).build()


class _Encoder(BertGraph):
    def build(self) -> Any:
        """Return the graph that `build_encoder` describes."""
        states = self._embedded(self._positions(), self._one_segment())
        for layer in range(self._layers):
            states = self._layer(states, layer, only_first=layer == self._layers - 1 and self._card.pooling == "cls")
        pooled = self.graph.add("ReduceMean", [states, self.graph.constant("axis.1", np.array([1]))], keepdims=0)
        vector = self.graph.add("LpNormalization", [pooled], axis=1, p=2)
        return self.graph.model({"input_ids": TOKENS}, {"vector": (vector, ("n", self._hidden))})
