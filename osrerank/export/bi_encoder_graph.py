"""Build the ONNX graph of a bi-encoder or late-interaction model. All sequences of a batch have the same length."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.export.graph import TOKENS_SHAPE, BertGraph, Graph, Weights
from osrerank.export.head_graph import add_head
from osrerank.export.modern_bert_graph import ModernBertGraph
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import current_name
from osrerank.scoring.modular import modern_bert as modern_shape
from osrerank.scoring.saved_encoder import POSITION_BUCKETS

PREFIXES = ("bert.", "roberta.", "mpnet.")
"""Prefixes of the weights' names in encoders that were saved with a head, such as ``bert.encoder.layer.0...``."""
MPNET_NAMES = {
    "attention.attn.q": "attention.self.query",
    "attention.attn.k": "attention.self.key",
    "attention.attn.v": "attention.self.value",
    "attention.attn.o": "attention.output.dense",
    "attention.LayerNorm": "attention.output.LayerNorm",
}
"""Name of a module in an MPNet layer -> its name in a BERT layer."""
MAX_BUCKET_DISTANCE = 128
"""MPNet puts all pairs of tokens that are at least this far apart into the same bucket."""


def build_encoder(weights: Weights, config: Mapping[str, Any], card: ModelCard) -> Any:
    """Return the graph that computes the vectors of queries or documents, as an ``onnx.ModelProto`` in fp32.

    Its input is ``input_ids``, int64 ``(n, tokens)``, without padding. Its output ``vector`` is float32
    ``(n, dimensions)``, or ``(n * tokens, dimensions)`` in late interaction.

    Some late-interaction models append [MASK] tokens to a query, and no token may attend to them. The graph of such a
    model has a second input ``attention_mask``, which is 0 for the appended tokens.

    Args:
        weights: the weights by their names in transformers. The names of a head's weights begin with the folder of
            their module, such as ``2_Dense.linear.weight``.
        config: the model's ``config.json``, which `osrerank.scoring.saved_encoder.check_architecture` accepts.
        card: the bi-encoder's card.

    Raises:
        KeyError: a weight is missing.
    """
    model_type, head = config.get("model_type"), card.vector_head
    encoder: ModernBertGraph | _EncoderGraph
    if model_type == modern_shape.MODEL_TYPE:
        named_weights = {name.removeprefix(modern_shape.CLASSIFIER_PREFIX): array for name, array in weights.items()}
        encoder = ModernBertGraph(named_weights, modern_shape.ModernBertShape.from_config(config))
    else:
        named_weights = _rename_weights(weights)
        graph_class = _MpnetGraph if model_type == "mpnet" else _EncoderGraph
        encoder = graph_class(named_weights, config, card)
    states = encoder.states(only_first=head.pooling == ("cls",))
    graph = encoder.graph
    vector = add_head(graph, states, head, named_weights)
    inputs = {"input_ids": TOKENS_SHAPE}
    if card.tokens.hides_expansion:
        _apply_attention_mask(graph)
        inputs["attention_mask"] = TOKENS_SHAPE
    return graph.model(inputs, {"vector": (vector, ("n", card.dimensions or config["hidden_size"]))})


def _apply_attention_mask(graph: Graph) -> None:
    """Change a graph so that no token attends to the last tokens of a sequence, whose ``attention_mask`` is 0."""
    nodes = graph.nodes
    graph.nodes = []  # the nodes are added again below, after the token count that they need
    total = graph.add("ReduceSum", ["attention_mask"], keepdims=0)
    token_count = graph.add("Reshape", [total, graph.constant("shape.1", np.array([1]))])
    for node in nodes:
        _add_with_truncated_attention(graph, node, token_count)


def _add_with_truncated_attention(graph: Graph, node: Any, token_count: str) -> None:
    """Add a node, whose attention sees only the first ``token_count`` tokens, and likewise in the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):  # the attribute is a branch, which is a graph of its own
            outer_nodes = graph.nodes
            graph.nodes = []  # collects the branch's new nodes
            for branch_node in attribute.g.node:
                _add_with_truncated_attention(graph, branch_node, token_count)
            del attribute.g.node[:]
            attribute.g.node.extend(graph.nodes)
            graph.nodes = outer_nodes
    if node.op_type == "MultiHeadAttention":
        start = graph.axis(0)
        keys, values, bias = 1, 2, 5  # positions of the operator's inputs
        for index, tokens_axis in ((keys, 1), (values, 1), (bias, 3)):
            if len(node.input) > index and node.input[index]:
                axes = graph.axis(tokens_axis)
                node.input[index] = graph.add("Slice", [node.input[index], start, token_count, axes])
    graph.nodes.append(node)


def _rename_weights(weights: Weights) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights of any model under BERT's names: ``mpnet.pooler.dense.bias`` -> ``pooler.dense.bias``."""
    renamed = {}
    for name, array in weights.items():
        bert_name = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
        for old, new in MPNET_NAMES.items():
            bert_name = bert_name.replace(f".{old}.", f".{new}.")
        renamed[current_name(bert_name)] = array
    return renamed


class _EncoderGraph(BertGraph):
    """Builds the graph of a BERT encoder without its head. All tokens belong to the first segment.

    As in `BertGraph`, methods take and return the names of values in the graph.
    """

    def states(self, *, only_first: bool) -> str:
        """Return the last layer's states: of all tokens ``(n, tokens, hidden)``, or of the first ``(n, 1, hidden)``."""
        states = self._embeddings(self._positions(), self._first_segment())
        for layer in range(self._layers):
            states = self._layer(states, layer, only_first=only_first and layer == self._layers - 1)
        return states


class _MpnetGraph(_EncoderGraph):
    """Builds the graph of an MPNet, which is a BERT without segments.

    Its attention has a bias for each head and each distance between tokens (Song et al. 2020, arXiv 2004.09297).
    """

    def _embeddings(self, positions: str, segments: str) -> str:
        del segments
        return self._norm([self._look_up("word", "input_ids"), positions], "embeddings.LayerNorm")

    def _first_segment(self) -> str:
        return ""

    def _attention_bias(self, *, only_first: bool) -> str:
        """Return the biases of all pairs of tokens, or only of the first token's pairs ``(1, heads, 1, tokens)``."""
        biases = self._pair_biases
        if only_first:
            biases = self.graph.add(
                "Slice", [biases, self.graph.axis(0), self.graph.axis(1), self.graph.axis(2)]
            )  # 0 to 1 on axis 2
        return biases

    @cached_property
    def _pair_biases(self) -> str:
        """The biases of all pairs of tokens ``(1, heads, tokens, tokens)``, which all layers share."""
        add, constant = self.graph.add, self.graph.constant
        max_positions = len(self._weights["embeddings.position_embeddings.weight"])
        distances = np.arange(1 - max_positions, max_positions)
        table = self._weights["encoder.relative_attention_bias.weight"][distance_buckets(distances)].T
        token_count = add("Squeeze", [add("Shape", ["input_ids"], start=1, end=2), self.graph.axis(0)])
        positions = add("Range", [constant("zero", np.array(0)), token_count, constant("one", np.array(1))])
        pair_distances = add("Sub", [positions, add("Unsqueeze", [positions, self.graph.axis(1)])])
        columns = add("Add", [pair_distances, constant("max_distance", np.array(max_positions - 1))])
        biases = constant("distances", table)  # (heads, distances)
        return add("Unsqueeze", [add("Gather", [biases, columns], axis=1), self.graph.axis(0)])


def distance_buckets(distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of each distance from one token to another, as in transformers' MPNet.

    Each short distance has a bucket of one value. Longer distances are grouped into buckets that become wider with the
    distance (T5, arXiv 1910.10683, section 2.1). Positive and negative distances have different buckets.
    """
    n_per_sign = POSITION_BUCKETS // 2
    n_exact = n_per_sign // 2  # buckets of one distance
    magnitudes = np.abs(distances)
    ratios = np.maximum(magnitudes, 1).astype(np.float32) / np.float32(n_exact)
    steps = np.log(ratios) / np.float32(math.log(MAX_BUCKET_DISTANCE / n_exact)) * np.float32(n_per_sign - n_exact)
    shared_buckets = np.minimum(n_exact + steps.astype(np.int64), n_per_sign - 1)
    return n_per_sign * (distances > 0) + np.where(magnitudes < n_exact, magnitudes, shared_buckets)
