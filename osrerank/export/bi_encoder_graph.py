"""Build the ONNX graph of a bi-encoder, without padding: all texts in a batch have the same length."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.export.graph import TOKENS, BertGraph, Graph, Weights
from osrerank.export.head_graph import add_head
from osrerank.export.modern_bert_graph import ModernBertGraph
from osrerank.scoring.card import ModelCard
from osrerank.scoring.modular import modern_bert as modern_shape
from osrerank.scoring.saved_encoder import POSITION_BUCKETS

PREFIXES = ("bert.", "roberta.", "mpnet.")
"""Prefixes of the weights' names if an encoder was saved with a head."""
MPNET = {
    "attention.attn.q": "attention.self.query",
    "attention.attn.k": "attention.self.key",
    "attention.attn.v": "attention.self.value",
    "attention.attn.o": "attention.output.dense",
    "attention.LayerNorm": "attention.output.LayerNorm",
}
"""MPNet's names for the weights of a layer -> BERT's names."""
OLDER = {"gamma": "weight", "beta": "bias"}
"""TensorFlow's names for a LayerNorm's weights, which some versions of transformers write -> PyTorch's names."""
FARTHEST = 128
"""Least distance at which all relative positions of an MPNet share a bucket."""


def build_encoder(weights: Weights, config: Mapping[str, Any], card: ModelCard) -> Any:
    """Return the graph that encodes texts, as an ``onnx.ModelProto`` in fp32.

    Its input is ``input_ids``, int64 ``(n, tokens)``; the rows of a batch must have the same length. Its output
    ``vector`` is float32 ``(n, dimensions)``. With [CLS] pooling, the last layer computes only the [CLS] row. For late
    interaction, ``vector`` has a row for each token. If a query's own tokens must not attend to those that fill it,
    a second input ``attention_mask`` is 0 on the filling tokens.

    Args:
        weights: name in transformers -> array; the names of a module's arrays begin with the module's folder.
        config: the model's ``config.json``, which `osrerank.scoring.saved_encoder.check_architecture` accepts.
        card: the bi-encoder's card.

    Raises:
        KeyError: a weight is missing.
    """
    kind, head = config.get("model_type"), card.vector_head
    only_first = head.pooling == ("cls",)
    if kind == modern_shape.MODEL_TYPE:
        unprefixed = {name.removeprefix(modern_shape.CLASSIFIER_PREFIX): array for name, array in weights.items()}
        modern = ModernBertGraph(unprefixed, modern_shape.ModernBertShape.from_config(config))
        graph, states = modern.graph, modern.states(only_first=only_first)
    else:
        unprefixed = _bert_names(weights)
        bert = (_MpnetEncoder if kind == "mpnet" else _Encoder)(unprefixed, config, card)
        graph, states = bert.graph, bert.states(only_first=only_first)
    vector = add_head(graph, states, head, unprefixed)
    inputs = {"input_ids": TOKENS}
    if card.tokens.hides_expansion:
        _hide_unattended(graph)
        inputs["attention_mask"] = TOKENS
    return graph.model(inputs, {"vector": (vector, ("n", card.dimensions or config["hidden_size"]))})


def _hide_unattended(graph: Graph) -> None:
    """Change a graph so that no token attends to the tokens at the end whose ``attention_mask`` is 0."""
    nodes, graph.nodes = graph.nodes, []
    total = graph.add("ReduceSum", ["attention_mask"], keepdims=0)
    visible = graph.add("Reshape", [total, graph.constant("shape.1", np.array([1]))])
    for node in nodes:
        _add_masked(graph, node, visible)


def _add_masked(graph: Graph, node: Any, visible: str) -> None:
    """Add a node to a graph; attention in the node or its branches is limited to the first ``visible`` tokens."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            outer, graph.nodes = graph.nodes, []
            for inner in attribute.g.node:
                _add_masked(graph, inner, visible)
            del attribute.g.node[:]
            attribute.g.node.extend(graph.nodes)
            graph.nodes = outer
    if node.op_type == "MultiHeadAttention":
        for index, axis in ((1, 1), (2, 1), (5, 3)):  # keys, values, and the bias of the logits
            if len(node.input) > index and node.input[index]:
                bounds = [
                    graph.constant("axis.0", np.array([0])),
                    visible,
                    graph.constant(f"axis.{axis}", np.array([axis])),
                ]
                node.input[index] = graph.add("Slice", [node.input[index], *bounds])
    graph.nodes.append(node)


def _bert_names(weights: Weights) -> dict[str, npt.NDArray[np.float32]]:
    """Return weights under BERT's names, without a prefix."""
    renamed = {}
    for name, array in weights.items():
        plain = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
        for mpnet_name, bert_name in MPNET.items():
            plain = plain.replace(f".{mpnet_name}.", f".{bert_name}.")
        module, _, parameter = plain.rpartition(".")
        renamed[f"{module}.{OLDER.get(parameter, parameter)}"] = array
    return renamed


class _Encoder(BertGraph):
    graph: Graph

    def states(self, *, only_first: bool) -> str:
        """Return the last states of all tokens, or only that of the first ``(n, 1, hidden)``."""
        states = self._embedded(self._positions(), self._one_segment())
        for layer in range(self._layers):
            states = self._layer(states, layer, only_first=only_first and layer == self._layers - 1)
        return states


class _MpnetEncoder(_Encoder):
    """MPNet (Song et al. 2020, arXiv 2004.09297): BERT without segments, with a bias for each distance and head."""

    def _embedded(self, positions: str, segments: str) -> str:
        del segments
        return self._norm([self._table("word", "input_ids"), positions], "embeddings.LayerNorm")

    def _one_segment(self) -> str:
        return ""

    def _attention_bias(self, *, only_first: bool) -> str:
        """Return the bias of all pairs of tokens ``(1, heads, tokens, tokens)``, or of the first token with each."""
        add, constant = self.graph.add, self.graph.constant
        if "distances" not in self.graph.constants:
            self._bias = self._all_biases()
        if not only_first:
            return self._bias
        bounds = [self._axis(0), self._axis(1), constant("axis.2", np.array([2]))]
        return add("Slice", [self._bias, *bounds])

    def _all_biases(self) -> str:
        add, constant = self.graph.add, self.graph.constant
        max_positions = len(self._weights["embeddings.position_embeddings.weight"])
        distances = np.arange(1 - max_positions, max_positions)
        table = self._weights["encoder.relative_attention_bias.weight"][buckets(distances)].T  # (heads, distances)
        scalar = add("Squeeze", [add("Shape", ["input_ids"], start=1, end=2), self._axis(0)])
        positions = add("Range", [constant("zero", np.array(0)), scalar, constant("one", np.array(1))])
        differences = add("Sub", [positions, add("Unsqueeze", [positions, self._axis(1)])])
        indices = add("Add", [differences, constant("most", np.array(max_positions - 1))])
        return add("Unsqueeze", [add("Gather", [constant("distances", table), indices], axis=1), self._axis(0)])


def buckets(distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of each distance from a token to one that it attends to, as in transformers' MPNet.

    Near distances have a bucket each; farther ones share buckets logarithmically (T5, arXiv 1910.10683, section 2.1).
    """
    half, exact = POSITION_BUCKETS // 2, POSITION_BUCKETS // 4
    far = np.maximum(np.abs(distances), 1).astype(np.float32)
    steps = np.log(far / np.float32(exact)) / np.float32(math.log(FARTHEST / exact)) * np.float32(half - exact)
    shared = np.minimum(exact + steps.astype(np.int64), half - 1)
    return half * (distances > 0) + np.where(np.abs(distances) < exact, np.abs(distances), shared)
