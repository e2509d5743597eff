"""Build the ONNX graph of a BERT cross-encoder for sequences of the same length.

The graph is faster on CPUs than one that torch's tracer exports, for several reasons. It needs no attention mask. If
the head uses only the [CLS] state, the last layer computes no other state. One matrix product computes queries, keys
and values. Sum and LayerNormalization replace ONNX Runtime's SkipLayerNormalization, which is several times as slow
(docs/research/inference.md).

`osrerank.scoring.backends.networks.onnx_weights` reads the weights back from the graph by the names of its constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.export.head_graph import RUNTIME_DOMAIN, add_head
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import first_position_id
from osrerank.scoring.modular.head import Head, HeadStep

OPSET = 18
IR_VERSION = 9
INPUTS = ("input_ids", "token_type_ids")

Array = npt.NDArray[Any]
Weights = Mapping[str, npt.NDArray[np.float32]]
Shape = Sequence[str | int]
TOKENS_SHAPE = ("n", "tokens")
"""The shape of all inputs: n sequences of the same number of tokens."""


def can_build(config: Mapping[str, Any]) -> bool:
    """Return whether `build_bert` supports a model: a BERT encoder with exact GELU and absolute positions."""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


def build_bert(weights: Weights, config: Mapping[str, Any], card: ModelCard, head: Head | None = None) -> Any:
    """Return a BERT cross-encoder as an ``onnx.ModelProto`` in fp32.

    Its inputs are ``input_ids`` and ``token_type_ids``, int64 ``(n, tokens)``. The rows of a batch must have the same
    length. Its output ``logits`` is float32 ``(n, labels)``.

    Args:
        weights: the weights under transformers' names, with or without the prefix ``bert.``.
        config: the model's ``config.json``; see `can_build`.
        card: the model's card.
        head: the head of a modular cross-encoder. If it is None, the model has the head of a BERT classifier.

    Raises:
        KeyError: a weight is missing.
    """
    unprefixed = {name.removeprefix("bert."): array for name, array in weights.items()}
    bert = BertGraph(unprefixed, config, card)
    logits = bert.logits(head)
    # a head with two classes has a logit for each of them
    n_labels = 2 if card.head in {"logits2", "next-sentence"} else 1
    return bert.graph.model(dict.fromkeys(INPUTS, TOKENS_SHAPE), {"logits": (logits, ("n", n_labels))})


@dataclass(slots=True)
class Graph:
    """A graph under construction. Values are given by their names: ``Add.7.0`` is output 0 of the node ``Add.7``."""

    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    node_count: int = 0

    def constant(self, name: str, array: Array) -> str:
        """Add an array, unless this name is already used, and return the name."""
        if name not in self.constants:
            onnx = require("onnx", extra="onnx")
            self.constants[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def axis(self, number: int) -> str:
        """Add the constant ``[number]``, for an axis or for a bound of a Slice."""
        return self.constant(f"axis.{number}", np.array([number]))

    def add(self, operator: str, inputs: Sequence[str], name: str = "", *, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        return self.add_node(operator, inputs, 1, name, domain=domain, **attributes)[0]

    def add_node(
        self, operator: str, inputs: Sequence[str], outputs: int, name: str = "", *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node, and return the names of its ``outputs`` outputs."""
        onnx = require("onnx", extra="onnx")
        name = name or f"{operator}.{self.node_count}"
        self.node_count += 1
        output_names = [f"{name}.{index}" for index in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, output_names, name=name, domain=domain, **attributes))
        return output_names

    def model(self, inputs: Mapping[str, Shape], outputs: Mapping[str, tuple[str, Shape]]) -> Any:
        """Return the finished graph as an ``onnx.ModelProto``.

        Args:
            inputs: name of each int64 input -> its shape.
            outputs: name of each float32 output -> the value in the graph and its shape, such as
                ``{"logits": ("Gemm.9.0", ("n", 1))}``.
        """
        onnx = require("onnx", extra="onnx")
        make, types = onnx.helper, onnx.TensorProto
        # give the outputs their names
        self.nodes.extend(make.make_node("Identity", [value], [name]) for name, (value, _) in outputs.items())
        graph = make.make_graph(
            self.nodes,
            "bert",
            [make.make_tensor_value_info(name, types.INT64, shape) for name, shape in inputs.items()],
            [make.make_tensor_value_info(name, types.FLOAT, shape) for name, (_, shape) in outputs.items()],
            list(self.constants.values()),
        )
        opsets = [make.make_opsetid("", OPSET), make.make_opsetid(RUNTIME_DOMAIN, 1)]
        return make.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="osrerank")


class BertGraph:
    """Builds the graph of a BERT from weights under transformers' names, without the prefix ``bert.``.

    States are ``(n, tokens, hidden)``. Methods take and return the names of values in the graph.
    """

    def __init__(self, weights: Weights, config: Mapping[str, Any], card: ModelCard) -> None:
        self.graph = Graph()
        self._weights = weights
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        self._heads = int(config["num_attention_heads"])
        self._layers = int(config["num_hidden_layers"])
        self._first_position = first_position_id(config)
        self._card = card

    def logits(self, head: Head | None) -> str:
        """Return the logits ``(n, labels)`` of a head, or of a BERT classifier's head if it is None."""
        classifier = "cls.seq_relationship" if self._card.head == "next-sentence" else "classifier"
        head = head or Head((HeadStep("dense", "pooler.dense", "tanh"), HeadStep("dense", classifier)))
        states = self._embeddings(self._positions(), self._look_up("token_type", "token_type_ids"))
        for layer in range(self._layers - 1):
            states = self._layer(states, layer)
        states = self._layer(states, self._layers - 1, only_first=head.pooling == ("cls",))
        return add_head(self.graph, states, head, self._weights)

    def _layer(self, states: str, layer: int, *, only_first: bool = False) -> str:
        """Return the states after a layer: of all tokens, or only of [CLS] ``(n, 1, hidden)``."""
        weights_name, node_name = f"encoder.layer.{layer}", f"layers.{layer}"
        query_states = self._first_token(states) if only_first else states
        inputs = self._projections(states, query_states, weights_name, node_name, only_first=only_first)
        bias = self._attention_bias(only_first=only_first)
        if bias:
            # the optional inputs before it stay empty: the projections' bias and a padding mask
            inputs += ["", "", bias]
        context = self.graph.add("MultiHeadAttention", inputs, domain=RUNTIME_DOMAIN, num_heads=self._heads)
        return self._feed_forward(context, query_states, layer)

    def _attention_bias(self, *, only_first: bool) -> str:  # noqa: ARG002 - a subclass uses it
        """Return the bias that is added to the attention logits, or "" if there is none, as in BERT."""
        return ""

    def _feed_forward(self, context: str, residual: str, layer: int) -> str:
        """Add what follows attention in a layer: its output matrix, the feed-forward network and both norms."""
        weights_name, node_name = f"encoder.layer.{layer}", f"layers.{layer}"
        attention_output = self._linear(context, f"{node_name}.attended", [f"{weights_name}.attention.output.dense"])
        states = self._norm([attention_output, residual], f"{weights_name}.attention.output.LayerNorm")
        intermediate = self._product(states, f"{node_name}.widen", [f"{weights_name}.intermediate.dense"])
        bias = self.graph.constant(f"{node_name}.widen.bias", self._weights[f"{weights_name}.intermediate.dense.bias"])
        intermediate = self.graph.add("BiasGelu", [intermediate, bias], domain=RUNTIME_DOMAIN)
        output = self._linear(intermediate, f"{node_name}.narrow", [f"{weights_name}.output.dense"])
        return self._norm([output, states], f"{weights_name}.output.LayerNorm")

    def _projections(
        self, states: str, query_states: str, weights_name: str, node_name: str, *, only_first: bool
    ) -> list[str]:
        """Return three values: the queries of ``query_states``, and the keys and the values of ``states``."""
        query, *key_value = (f"{weights_name}.attention.self.{projection}" for projection in ("query", "key", "value"))
        if not only_first:
            projections = self._linear(states, f"{node_name}.projections", [query, *key_value])
            return self.graph.add_node("Split", [projections], 3, axis=2, num_outputs=3)
        projections = self._linear(states, f"{node_name}.keys_values", key_value)
        keys_values = self.graph.add_node("Split", [projections], 2, axis=2, num_outputs=2)
        return [self._linear(query_states, f"{node_name}.query", [query]), *keys_values]

    def _embeddings(self, positions: str, segments: str) -> str:
        words = self._look_up("word", "input_ids")
        return self._norm([words, positions, segments], "embeddings.LayerNorm")

    def _first_segment(self) -> str:
        """Return the embedding ``(hidden,)`` of the first segment, the only one that bi-encoders use."""
        return self.graph.constant("segment", self._weights["embeddings.token_type_embeddings.weight"][0])

    def _positions(self) -> str:
        """Return the embeddings of the tokens' positions ``(tokens, hidden)``."""
        tokens = self.graph.add("Shape", ["input_ids"], start=1, end=2)
        rows = self._weights["embeddings.position_embeddings.weight"][self._first_position :]
        table = self.graph.constant("positions", rows)
        return self.graph.add("Slice", [table, self.graph.axis(0), tokens])

    def _look_up(self, kind: str, ids: str) -> str:
        """Return the embeddings of ``ids`` in the table of ``kind``, "word" or "token_type"."""
        name = f"embeddings.{kind}_embeddings.weight"
        return self.graph.add("Gather", [self.graph.constant(name, self._weights[name]), ids])

    def _norm(self, terms: Sequence[str], name: str) -> str:
        names = [f"{name}.weight", f"{name}.bias"]
        scale, offset = (self.graph.constant(parameter, self._weights[parameter]) for parameter in names)
        total = self.graph.add("Sum", terms)
        return self.graph.add("LayerNormalization", [total, scale, offset], axis=-1, epsilon=self._epsilon)

    def _linear(self, states: str, node_name: str, weights_names: Sequence[str]) -> str:
        """Return the concatenated outputs of several linear layers, which one matrix product computes."""
        product = self._product(states, node_name, weights_names)
        bias = np.concatenate([self._weights[f"{name}.bias"] for name in weights_names])
        return self.graph.add("Add", [product, self.graph.constant(f"{node_name}.bias", bias)])

    def _product(self, states: str, node_name: str, weights_names: Sequence[str]) -> str:
        matrix = np.concatenate([self._weights[f"{name}.weight"] for name in weights_names]).T
        return self.graph.add("MatMul", [states, self.graph.constant(f"{node_name}.weight", matrix)], node_name)

    def _first_token(self, states: str) -> str:
        """Return the states of [CLS] ``(n, 1, hidden)``."""
        bounds_and_axis = [self.graph.axis(number) for number in (0, 1, 1)]  # from 0 to 1, on axis 1
        return self.graph.add("Slice", [states, *bounds_and_axis])
