"""Build a joined model's ONNX graphs: one encodes texts, another joins a query and documents.

The encoder graph serves queries and documents. Where texts' vectors are their [CLS] states, its last layer computes
nothing else. The join graph has the last m layers for the rows of the query that look at the document. It reads the
document's states as they are. Head by head, the logit of a row x_j is ``((W_k^T q) x_j + q b_k) / sqrt(d) + g + log
n_j``, and the context is ``W_v (sum_j p_j x_j) + b_v sum_j p_j``: the document's keys and values are never computed.
States may be integers with a scale s_j for each row: then s_j multiplies the product with x_j, and p_j in the sum.

A model with one joined layer has the graphs of `osrerank.export.contexts_graph` in place of the join graph. All are
tested against `osrerank.scoring.networks.joined`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from osrerank.export.graph import TOKENS, BertGraph, Shape, Weights
from osrerank.export.quantise import quantise_rows
from osrerank.scoring.card import ModelCard
from osrerank.scoring.networks.bert_weights import OWN


def build_encoder(weights: Weights, config: Mapping[str, Any], card: ModelCard) -> Any:
    """Return the graph that encodes texts, as an ``onnx.ModelProto`` in fp32.

    Its input is ``input_ids``, int64 ``(n, tokens)``; rows of a batch must have one length. Its outputs are float32:
    ``vector`` ``(n, hidden)``, of norm 1, and ``states.0`` to ``states.m-1`` ``(n, tokens, hidden)``, which enter the
    joined layers.

    Args:
        weights: by their transformers names, with or without the prefix ``bert.``.
        config: the model's ``config.json``; see `osrerank.export.graph.can_build`.
        card: of the layout ``joined``.

    Raises:
        KeyError: a weight is missing.
    """
    return _Encoder(_plain(weights), config, card).build()


def _looking(weights: Weights, config: Mapping[str, Any], card: ModelCard) -> Weights:
    """Return the weights with the joined layers' own in place of the encoder's, where they have their own."""
    if not card.joining.own_weights:
        return weights
    first, own = int(config["num_hidden_layers"]) - card.joining.layers, dict(weights)
    for name, array in weights.items():
        if name.startswith(f"{OWN}."):
            index, _, rest = name.removeprefix(f"{OWN}.").partition(".")
            own[f"encoder.layer.{first + int(index)}.{rest}"] = array
    return own


def _plain(weights: Weights) -> Weights:
    return {name.removeprefix("bert."): array for name, array in weights.items()}


class _Encoder(BertGraph):
    def build(self) -> Any:
        """Return `build_encoder`'s graph."""
        joining, states = self._card.joining, self._embedded(self._positions(), self._one_segment())
        outputs: dict[str, tuple[str, Shape]] = {}
        for layer in range(self._layers):
            if (place := layer - self._layers + joining.layers) >= 0:
                outputs[f"states.{place}"] = (states, (*TOKENS, self._hidden))
            is_last = layer == self._layers - 1
            states = self._layer(states, layer, only_first=is_last and joining.pooling == "cls")
        vector = _vector(self, states)
        return self.graph.model({"input_ids": TOKENS}, {"vector": (vector, ("n", self._hidden)), **outputs})


class JoiningGraph(BertGraph, ABC):
    """What graphs of joined layers share; n is 1 for what is the same beside each document.

    Args:
        weights: as of `build_encoder`.
        config: likewise.
        card: of the layout ``joined``.
        int8: whether the file has the matrices in int8, with a scale for each output; ONNX Runtime makes fp32 of them
            when it loads the graph, so that the scores of one document never depend on the others.
    """

    def __init__(self, weights: Weights, config: Mapping[str, Any], card: ModelCard, *, int8: bool) -> None:
        super().__init__(_looking(_plain(weights), config, card), config, card)
        self._is_int8 = int8

    @abstractmethod
    def build(self) -> Any:
        """Return the graph, as an ``onnx.ModelProto`` that computes in fp32.

        Raises:
            KeyError: a weight is missing.
        """

    def _asked(self, looking: str, layer: int) -> tuple[str, str, str]:
        """Return rows' attention queries, the same times the key matrix, and their products with the key bias.

        Args:
            looking: rows of the query ``(n, looking, hidden)``.
            layer: number of the layer.

        Returns:
            ``(n, heads, looking, width)``, ``(n, heads * looking, hidden)`` and ``(n, heads, looking, 1)``.
        """
        add, ours = self.graph.add, f"layers.{layer}"
        query, key = (f"encoder.layer.{layer}.attention.self.{part}" for part in ("query", "key"))
        asked = self._split_heads(self._linear(looking, f"{ours}.query", [query]))
        asked = add("Mul", [asked, self._number("scale", self._width**-0.5)])
        keyed = add("MatMul", [asked, self._by_head(key, ours, "key")])
        together = add("Reshape", [keyed, self._shape(0, -1, self._hidden)])
        return asked, together, add("MatMul", [asked, self._bias_by_head(key, f"{ours}.key", self._width, 1)])

    def _beside(self, by_head: str) -> str:
        """Return contexts with their heads side by side ``(n, looking, hidden)``."""
        turned = self.graph.add("Transpose", [by_head], perm=[0, 2, 1, 3])
        return self.graph.add("Reshape", [turned, self._shape(0, 0, self._hidden)])

    def _value_bias(self, layer: int) -> str:
        name = f"encoder.layer.{layer}.attention.self.value"
        return self._bias_by_head(name, f"layers.{layer}.value", 1, self._width)

    def _valued(self, sums: str, layer: int) -> str:
        """Return the values of sums of rows ``(n, heads, looking, width)``: one product a head for all documents."""
        add, value, ours = self.graph.add, f"encoder.layer.{layer}.attention.self.value", f"layers.{layer}"
        by_head = add("Transpose", [sums], perm=[1, 0, 2, 3])
        flat = add("Reshape", [by_head, self._shape(self._heads, -1, self._hidden)])
        values = add("MatMul", [flat, add("Transpose", [self._by_head(value, ours, "value")], perm=[0, 2, 1])])
        counts = add("Shape", [by_head], start=1, end=3)
        parts = [self._shape(self._heads), counts, self._shape(self._width)]
        apart = add("Reshape", [values, add("Concat", parts, axis=0)])
        return add("Transpose", [apart], perm=[1, 0, 2, 3])

    def _summed(self, shares: str, rows: str) -> str:
        """Return sums of rows ``(n, rows, hidden)`` by shares: ``(n, heads, looking, hidden)``."""
        add = self.graph.add
        shape = add("Concat", [self._shape(0, -1), add("Shape", [shares], start=3, end=4)], axis=0)
        return self._heads_of_rows(add("MatMul", [add("Reshape", [shares, shape]), rows]))

    def _heads_of_rows(self, together: str) -> str:
        """Return ``(n, heads, looking, columns)`` of ``(n, heads * looking, columns)``."""
        columns = self.graph.add("Shape", [together], start=2, end=3)
        shape = self.graph.add("Concat", [self._shape(0, self._heads, -1), columns], axis=0)
        return self.graph.add("Reshape", [together, shape])

    def _axes(self, *axes: int) -> str:
        return self.graph.constant(f"axes.{'.'.join(map(str, axes))}", np.array(axes))

    def _shape(self, *sizes: int) -> str:
        """Return a shape, or a part of one: 0 keeps the size in that place, -1 takes what is left."""
        return self.graph.constant(f"shape.{'.'.join(map(str, sizes))}", np.array(sizes))

    def _product(self, states: str, ours: str, theirs: Sequence[str]) -> str:
        turned = self.graph.add("Transpose", [self._matrix(theirs[0], ours)])
        return self.graph.add("MatMul", [states, turned], ours)

    def _matrix(self, name: str, ours: str) -> str:
        """Return a matrix ``(outputs, inputs)``."""
        if not self._is_int8:
            return self.graph.constant(f"{ours}.weight", self._weights[f"{name}.weight"])
        rows, scales = quantise_rows(self._weights[f"{name}.weight"])
        integers = self.graph.constant(f"{ours}.weight.int8", rows)
        whole = self.graph.add("Cast", [integers], to=1)
        return self.graph.add("Mul", [whole, self.graph.constant(f"{ours}.weight.scale", scales)])

    def _by_head(self, name: str, ours: str, part: str) -> str:
        """Return a projection's matrix ``(heads, width, hidden)``."""
        shape = self.graph.constant("by.head", np.array([self._heads, self._width, self._hidden]))
        return self.graph.add("Reshape", [self._matrix(name, f"{ours}.{part}"), shape])

    def _bias_by_head(self, name: str, ours: str, *sizes: int) -> str:
        """Return a projection's bias with these sizes for each head."""
        bias = self.graph.constant(f"{ours}.bias", self._weights[f"{name}.bias"])
        return self.graph.add("Reshape", [bias, self._shape(self._heads, *sizes)])

    def _split_heads(self, states: str) -> str:
        """Return ``(n, heads, rows, width)``."""
        shape = self.graph.constant("heads.apart", np.array([0, 0, self._heads, self._width]))
        return self.graph.add("Transpose", [self.graph.add("Reshape", [states, shape])], perm=[0, 2, 1, 3])

    def _score(self, states: str, vectors: str) -> str:
        """Return the products of the query's vectors with the documents', or with differences of two ``(n, 1)``.

        Args:
            states: of the query's rows beside each document.
            vectors: of the documents ``(n, hidden)``.
        """
        plain = self._times("query_vector", vectors)
        joined = self._times(_vector(self, states), vectors)
        share = self._number("cosine_share", self._card.joining.cosine_share)
        apart = self.graph.add("Mul", [self.graph.add("Sub", [plain, joined]), share])
        return self.graph.add("Add", [joined, apart])

    def _times(self, vector: str, vectors: str) -> str:
        """Return the products of a query's vectors ``(1 or n, hidden)`` with others ``(n, hidden)``: ``(n, 1)``."""
        return self.graph.add("ReduceSum", [self.graph.add("Mul", [vector, vectors]), self._axis(1)])


class JoinGraph(JoiningGraph):
    """Joins a query and documents in the last layers, two or more. Values are ``(n, rows, hidden)``.

    Its inputs are float32: ``query.i`` ``(1, tokens, hidden)``, ``document.i`` ``(n, rows, hidden)`` and ``scale.i``
    ``(n, rows)``, which multiplies the document's rows, for each joined layer i; ``query_vector`` ``(1, hidden)``,
    ``document_vector`` ``(n, hidden)``, and ``bias`` ``(n, rows)``, which is added to the rows' logits: g and the log
    of the pieces in a row, `BLOCKED` where there is none. Its output is ``logits`` ``(n, 1)``.
    """

    def build(self) -> Any:
        joining, first = self._card.joining, self._layers - self._card.joining.layers
        looks_alone = joining.rows == "cls"
        states = self._first("query.0") if looks_alone else "query.0"
        for place in range(joining.layers):
            own = states
            if looks_alone:
                own = f"query.{place}" if place == 0 else self._with_others(states, f"query.{place}")
            is_last = place == joining.layers - 1
            looking = self._first(states) if is_last and joining.pooling == "cls" and not looks_alone else states
            context = self._context(looking, own, place, first + place)
            states = self._after(context, looking, first + place)
        shapes: dict[str, Shape] = {}
        for place in range(joining.layers):
            shapes[f"query.{place}"] = (1, "tokens", self._hidden)
            shapes[f"document.{place}"] = ("n", "rows", self._hidden)
            shapes[f"scale.{place}"] = ("n", "rows")
        shapes["query_vector"], shapes["document_vector"] = (1, self._hidden), ("n", self._hidden)
        shapes["bias"] = ("n", "rows")
        score = self._score(states, "document_vector")
        return self.graph.model(shapes, {"logits": (score, ("n", 1))})

    def _context(self, looking: str, own: str, place: int, layer: int) -> str:
        """Return what rows attend to ``(n, looking, hidden)``: the query's own rows and the document's."""
        add = self.graph.add
        own_logits, own_values, logits = self._logits(looking, own, place, layer)
        own_logits = add("Add", [own_logits, self._zeros()])  # for each of the n documents
        attention = add("Softmax", [add("Concat", [own_logits, logits], axis=3)], axis=3)
        sizes = add("Concat", [add("Shape", [part], start=3, end=4) for part in (own_logits, logits)], axis=0)
        own_share, share = self.graph.split("Split", [attention, sizes], 2, axis=3)
        weight = add("ReduceSum", [share, self._axis(3)])
        offset = add("Mul", [weight, self._value_bias(layer)])
        scaled = add("Mul", [share, add("Unsqueeze", [f"scale.{place}", self._axes(1, 2)])])
        seen = self._valued(self._summed(scaled, f"document.{place}"), layer)
        return self._beside(add("Sum", [add("MatMul", [own_share, own_values]), seen, offset]))

    def _logits(self, looking: str, own: str, place: int, layer: int) -> tuple[str, str, str]:
        """Return the logits of rows that look: the query's own with their values, then the document's.

        In the first joined layer the query's rows are the same beside each document, so that the logits of all
        documents' rows are one product.

        Args:
            looking: rows of the query ``(1 or n, looking, hidden)``.
            own: all rows of the query.
            place: of the layer among the joined ones.
            layer: its number.
        """
        add, ours, document = self.graph.add, f"layers.{layer}", f"document.{place}"
        key, value = (f"encoder.layer.{layer}.attention.self.{part}" for part in ("key", "value"))
        asked, keyed, offset = self._asked(looking, layer)
        own_keys = add("Transpose", [self._split_heads(self._linear(own, f"{ours}.key", [key]))], perm=[0, 1, 3, 2])
        own_values = self._split_heads(self._linear(own, f"{ours}.value", [value]))
        if place == 0:
            flat = add("Transpose", [add("Squeeze", [keyed, self._axis(0)])], perm=[1, 0])
            logits = add("Transpose", [add("MatMul", [document, flat])], perm=[0, 2, 1])
        else:
            logits = add("MatMul", [keyed, add("Transpose", [document], perm=[0, 2, 1])])
        logits = add("Mul", [logits, add("Unsqueeze", [f"scale.{place}", self._axis(1)])])
        logits = self._heads_of_rows(logits)  # (n, heads, looking, rows)
        bias = add("Unsqueeze", ["bias", self._axes(1, 2)])
        logits = add("Sum", [logits, offset, bias])
        return add("MatMul", [asked, own_keys]), own_values, logits

    def _with_others(self, states: str, query: str) -> str:
        """Return the query's rows with its [CLS] as it is beside each document ``(n, tokens, hidden)``."""
        end = self.graph.constant("end", np.array([np.iinfo(np.int64).max]))
        others = self.graph.add("Slice", [query, self._axis(1), end, self._axis(1)])
        zeros = self.graph.add("Squeeze", [self._zeros(), self._axis(3)])
        return self.graph.add("Concat", [states, self.graph.add("Add", [others, zeros])], axis=1)

    def _zeros(self) -> str:
        """Return ``(n, 1, 1, 1)`` zeros, which make n of what is the same beside each document."""
        one = self.graph.add("Slice", ["bias", self._axis(0), self._axis(1), self._axis(1)])
        zero = self.graph.add("Mul", [one, self._number("zero", 0.0)])
        return self.graph.add("Unsqueeze", [zero, self._axes(2, 3)])


def _vector(graph: BertGraph, states: str) -> str:
    """Return texts' vectors of norm 1 ``(n, hidden)``: their only state where that is [CLS]'s, else the mean of all."""
    add = graph.graph.add
    pooled = add("ReduceMean", [states, graph.graph.constant("axis.1", np.array([1]))], keepdims=0)
    return add("LpNormalization", [pooled], axis=1, p=2)
