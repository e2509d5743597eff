"""Build a BERT cross-encoder as an ONNX graph for sequences of one length, as the CPU backend runs it.

Unlike a traced graph it has: no attention mask, except where documents are pooled, because sequences of unequal lengths
may then have equally many states; in a classifier's last layer only the row of [CLS] (exact: nothing else of that layer
is read); one product for queries, keys and values; and Sum with LayerNormalization, because ONNX Runtime's
SkipLayerNormalization takes several times as long (docs/research/inference.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.export.head_graph import RUNTIME, add_head
from osrerank.scoring.card import BEYOND, BLOCKED, CLOSED, SLACK, ModelCard
from osrerank.scoring.inputs import Batch
from osrerank.scoring.modular.head import Head, Step

OPSET = 18
IR_VERSION = 9
INPUTS = Batch.__slots__
PLACES = "places"
"""Input of places, int64, as `INPUTS` are."""

Array = npt.NDArray[Any]
Weights = Mapping[str, npt.NDArray[np.float32]]
Shape = Sequence[str | int]
TOKENS = ("n", "tokens")


def can_build(config: Mapping[str, Any]) -> bool:
    """Return whether `build_graph` supports a config: a BERT encoder with exact GELU and absolute positions."""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


def build_graph(weights: Weights, config: Mapping[str, Any], card: ModelCard, head: Head | None = None) -> Any:
    """Return the model as an ``onnx.ModelProto`` in fp32.

    Its inputs are ``input_ids`` and ``token_type_ids``, int64 ``(n, tokens)``; rows of a batch must have one length. A
    model that pools texts takes ``attention_mask`` too, and any lengths. Its output ``logits`` is float32
    ``(n, labels)``.

    Args:
        weights: by their transformers names, with or without the prefix ``bert.``.
        config: the model's ``config.json``; see `can_build`.
        card: head and layout.
        head: of a modular cross-encoder; None for a classifier's own.

    Raises:
        KeyError: a weight is missing.
    """
    named = {name.removeprefix("bert."): array for name, array in weights.items()}
    built = BertGraph(named, config, card)
    logits = built.cosine() if card.layout == "cross-bias" else built.classified(head)
    inputs = INPUTS if card.cross_bias.pools else [name for name in INPUTS if name != "attention_mask"]
    labels = 2 if card.head in {"logits2", "next-sentence"} else 1
    return built.graph.model(dict.fromkeys(inputs, TOKENS), {"logits": (logits, ("n", labels))})


@dataclass(slots=True)
class Graph:
    """Nodes and constants of a graph under construction; a value is named after its node."""

    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    made: int = 0

    def constant(self, name: str, array: Array) -> str:
        """Keep an array under a name, once."""
        if name not in self.constants:
            onnx = require("onnx", extra="onnx")
            self.constants[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def add(self, operator: str, inputs: Sequence[str], name: str = "", *, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output."""
        return self.split(operator, inputs, 1, name, domain=domain, **attributes)[0]

    def split(
        self, operator: str, inputs: Sequence[str], outputs: int, name: str = "", *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs."""
        onnx = require("onnx", extra="onnx")
        name = name or f"{operator}.{self.made}"
        self.made += 1
        made = [f"{name}.{index}" for index in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, made, name=name, domain=domain, **attributes))
        return made

    def model(self, inputs: Mapping[str, Shape], outputs: Mapping[str, tuple[str, Shape]]) -> Any:
        """Return the whole as a model.

        Args:
            inputs: name -> shape; `PLACES` and those of `INPUTS` are int64, others float32.
            outputs: name -> value and shape, float32.
        """
        onnx = require("onnx", extra="onnx")
        make, types = onnx.helper, onnx.TensorProto
        self.nodes.extend(make.make_node("Identity", [value], [name]) for name, (value, _) in outputs.items())
        kinds = {name: types.INT64 if name in (*INPUTS, PLACES) else types.FLOAT for name in inputs}
        graph = make.make_graph(
            self.nodes,
            "bert",
            [make.make_tensor_value_info(name, kinds[name], shape) for name, shape in inputs.items()],
            [make.make_tensor_value_info(name, types.FLOAT, shape) for name, (_, shape) in outputs.items()],
            list(self.constants.values()),
        )
        opsets = [make.make_opsetid("", OPSET), make.make_opsetid(RUNTIME, 1)]
        return make.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="osrerank")


class BertGraph:
    """BERT's parts, in the names of its transformers weights. Values are ``(n, tokens, hidden)``.

    Args:
        weights: without the prefix ``bert.``.
        config: the model's ``config.json``.
        card: head and layout.
    """

    def __init__(self, weights: Weights, config: Mapping[str, Any], card: ModelCard) -> None:
        self.graph = Graph()
        self._weights = weights
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        self._heads = int(config["num_attention_heads"])
        self._hidden = int(config["hidden_size"])
        self._width = self._hidden // self._heads
        self._layers = int(config["num_hidden_layers"])
        self._card = card
        self._is_token = ""

    def classified(self, head: Head | None) -> str:
        """Return the logits of a classifier ``(n, labels)``."""
        last = "cls.seq_relationship" if self._card.head == "next-sentence" else "classifier"
        head = head or Head((Step("dense", "pooler.dense", "tanh"), Step("dense", last)))
        states = self._embedded(self._positions(), self._table("token_type", "token_type_ids"))
        for layer in range(self._layers - 1):
            states = self._layer(states, layer)
        states = self._layer(states, self._layers - 1, only_first=head.pooling == ("cls",))
        return add_head(self.graph, states, head, self._weights)

    def cosine(self) -> str:
        """Return t * cosine of the mean states of query and document ``(n, 1)``, of `scoring.networks.cross_bias`.

        For duo it is t times the first document's cosine less the second's.
        """
        add = self.graph.add
        if self._card.cross_bias.pools:
            self._is_token = add("Cast", ["attention_mask"], to=1)
        parts = self._parts()
        states = self._embedded(self._table("position", self._restarted()), self._one_segment())
        if self._card.cross_bias.pools:
            states, parts = self._pooled(states, parts)
            bias = self._attention_bias(*parts, has_padding=True)
        else:
            bias = self._attention_bias(*parts)
        for layer in range(self._layers):
            states = self._layer(states, layer, bias=bias)
        query, *documents = (add("MatMul", [add("Unsqueeze", [mask, self._axis(1)]), states]) for mask in parts)
        cosines = [self._cosine(query, document) for document in documents]
        score = add("Sub", cosines) if self._card.kind == "duo" else cosines[0]
        return add("Mul", [score, self._number("temperature", self._card.cross_bias.temperature)])

    def _pooled(self, states: str, parts: Sequence[str]) -> tuple[str, list[str]]:
        """Return the pooled states, as `Pool` of `osrerank.scoring.networks.cross_bias`, and the rows of each part.

        Rows beyond a sequence's own belong to no part.
        """
        add = self.graph.add
        like = self._likeness(states)
        query, *documents = parts
        factor = self._card.cross_bias.pool_factor
        begins = add("Sum", [query, *(self._begins(like, part, factor) for part in documents)])
        run = add("Mul", [add("CumSum", [begins, self.graph.constant("axis", np.array(1))]), self._is_token])
        rows = add("ReduceMax", [add("ReduceSum", [begins, self._axis(1)])], keepdims=0)
        end = add("Add", [rows, self._number("one.fp32", 1.0)])
        numbers = add("Range", [self._number("one.fp32", 1.0), end, self._number("one.fp32", 1.0)])
        numbers = add("Unsqueeze", [numbers, self.graph.constant("axes.0.2", np.array([0, 2]))])
        members = add("Cast", [add("Equal", [add("Unsqueeze", [run, self._axis(1)]), numbers])], to=1)
        sizes = add("Max", [add("ReduceSum", [members, self._axis(2)]), self._number("one.fp32", 1.0)])
        tokens_of = [add("Mul", [members, add("Unsqueeze", [part, self._axis(1)])]) for part in parts]
        rows_of = [add("ReduceMax", [tokens, self._axis(2)], keepdims=0) for tokens in tokens_of]
        return add("MatMul", [add("Div", [members, sizes]), states], "pool"), rows_of

    def _begins(self, like: str, part: str, factor: float) -> str:
        """Return where runs begin in a part, 1 or 0: fp32 ``(n, tokens)``."""
        add = self.graph.add
        tokens = add("ReduceSum", [part, self._axis(1)])
        quotient = add("Div", [tokens, self._number(f"pool_factor.{factor}", factor)])
        count = add("Ceil", [add("Sub", [quotient, self._number("slack", SLACK)])])
        count = add("Max", [count, self._number("one.fp32", 1.0)])
        early = add("Cast", [add("Less", [self._place(like, part), count])], to=1)
        return add("Mul", [early, part])

    def _likeness(self, states: str) -> str:
        """Return the cosine of each state with the one before it, 0 for the first ``(n, tokens)``."""
        add, constant = self.graph.add, self.graph.constant
        normed = add("LpNormalization", [states], axis=2, p=2)
        last, end = constant("last", np.array([-1])), constant("end", np.array([np.iinfo(np.int64).max]))
        later = add("Slice", [normed, self._axis(1), end, self._axis(1)])
        earlier = add("Slice", [normed, self._axis(0), last, self._axis(1)])
        cosines = add("ReduceSum", [add("Mul", [later, earlier]), self._axis(2)], keepdims=0)
        return add("Pad", [cosines, constant("one.before", np.array([0, 1, 0, 0]))])

    def _place(self, like: str, part: str) -> str:
        """Return each piece's place in a part, the lowest cosine first: fp32 ``(n, tokens)``."""
        add = self.graph.add
        inside = add("Cast", [part], to=9)
        so_far = add("CumSum", [part, self.graph.constant("axis", np.array(1))])
        is_first = add("And", [inside, add("Equal", [so_far, self._number("one.fp32", 1.0)])])
        key = add("Where", [inside, like, self._number("beyond", BEYOND)])
        key = add("Where", [is_first, self._number("beyond.first", -BEYOND), key])
        tokens = add("Shape", ["input_ids"], start=1, end=2)
        for _ in range(2):
            _, key = self.graph.split("TopK", [key, tokens], 2, axis=1, largest=0)
        return add("Cast", [key], to=1)

    def _cosine(self, one: str, other: str) -> str:
        """Return the cosine of two vectors ``(n, 1, hidden)``, ``(n, 1)``.

        Products sum in the same order for every n; reductions do not.
        """
        add = self.graph.add
        turned = [add("Transpose", [part], perm=[0, 2, 1]) for part in (one, other)]
        norms = [add("Sqrt", [add("MatMul", pair)]) for pair in zip((one, other), turned, strict=True)]
        cosine = add("Div", [add("MatMul", [one, turned[1]]), add("Mul", norms)])
        return add("Squeeze", [cosine, self._axis(2)])

    def _parts(self) -> list[str]:
        """Return which tokens belong to the query and to each document, 1 or 0: fp32 ``(n, tokens)`` each."""
        if self._card.kind == "mono":
            in_document = self.graph.add("Cast", ["token_type_ids"], to=1)
            parts = [self._not(in_document), in_document]
        else:
            parts = [self._where("Equal", segment, to=1) for segment in range(3)]
        return [self._masked(part, self._is_token) for part in parts]

    def _masked(self, part: str, mask: str) -> str:
        """Return a part without padding, which only a model that pools documents accepts."""
        return self.graph.add("Mul", [part, mask]) if self._card.cross_bias.pools else part

    def _restarted(self) -> str:
        """Return the positions ``(n, tokens)``, from 0 with each document."""
        add, positions = self.graph.add, self._positions()
        if self._card.kind == "mono":
            return add("Sub", [positions, add("Mul", [self._query_tokens(), "token_type_ids"])])
        for segment in range(2):
            inside = self._masked(self._where("Equal", segment, to=7), "attention_mask")
            tokens = add("ReduceSum", [inside, self._axis(1)])
            positions = add("Sub", [positions, add("Mul", [tokens, self._where("Greater", segment, to=7)])])
        return positions

    def _where(self, comparison: str, segment: int, *, to: int) -> str:
        """Return 1 for each token whose segment compares so, else 0, in ONNX's type ``to`` ``(n, tokens)``."""
        number = self.graph.constant(f"segment.{segment}", np.array(segment))
        return self.graph.add("Cast", [self.graph.add(comparison, ["token_type_ids", number])], to=to)

    def _layer(self, states: str, layer: int, *, bias: str = "", only_first: bool = False) -> str:
        name, ours = f"encoder.layer.{layer}", f"layers.{layer}"
        rows = self._first(states) if only_first else states
        inputs = self._projections(states, rows, name, ours) + ([""] * 2 + [bias] if bias else [])
        context = self.graph.add("MultiHeadAttention", inputs, domain=RUNTIME, num_heads=self._heads)
        return self._after(context, rows, layer)

    def _after(self, context: str, rows: str, layer: int) -> str:
        """Return a layer's output for rows from what they attended to."""
        name, ours = f"encoder.layer.{layer}", f"layers.{layer}"
        attended = self._linear(context, f"{ours}.attended", [f"{name}.attention.output.dense"])
        states = self._norm([attended, rows], f"{name}.attention.output.LayerNorm")
        wide = self._product(states, f"{ours}.widen", [f"{name}.intermediate.dense"])
        offset = self.graph.constant(f"{ours}.widen.bias", self._weights[f"{name}.intermediate.dense.bias"])
        wide = self.graph.add("BiasGelu", [wide, offset], domain=RUNTIME)
        return self._norm(
            [self._linear(wide, f"{ours}.narrow", [f"{name}.output.dense"]), states], f"{name}.output.LayerNorm"
        )

    def _projections(self, states: str, rows: str, name: str, ours: str) -> list[str]:
        """Return queries of ``rows``, keys and values of ``states``."""
        query, *others = (f"{name}.attention.self.{part}" for part in ("query", "key", "value"))
        if rows == states:
            together = self._linear(states, f"{ours}.projections", [query, *others])
            return self.graph.split("Split", [together], 3, axis=2, num_outputs=3)
        together = self._linear(states, f"{ours}.keys_values", others)
        keys_values = self.graph.split("Split", [together], 2, axis=2, num_outputs=2)
        return [self._linear(rows, f"{ours}.query", [query]), *keys_values]

    def _embedded(self, positions: str, segments: str) -> str:
        words = self._table("word", "input_ids")
        return self._norm([words, positions, segments], "embeddings.LayerNorm")

    def _one_segment(self) -> str:
        """Return the embedding of the first segment, which a bi-encoder was trained with ``(hidden,)``."""
        return self.graph.constant("segment", self._weights["embeddings.token_type_embeddings.weight"][0])

    def _positions(self) -> str:
        """Return the embeddings of positions 0 to tokens ``(tokens, hidden)``; for ``cross-bias`` their numbers."""
        tokens = self.graph.add("Shape", ["input_ids"], start=1, end=2)
        table = self._weights["embeddings.position_embeddings.weight"]
        every = np.arange(len(table)) if self._card.layout == "cross-bias" else table
        return self.graph.add("Slice", [self.graph.constant("positions", every), self._axis(0), tokens])

    def _table(self, kind: str, ids: str) -> str:
        name = f"embeddings.{kind}_embeddings.weight"
        return self.graph.add("Gather", [self.graph.constant(name, self._weights[name]), ids])

    def _query_tokens(self) -> str:
        """Return how many tokens each row's query has ``(n, 1)``."""
        one = self.graph.constant("one", np.array(1))
        inside = self._masked(self.graph.add("Sub", [one, "token_type_ids"]), "attention_mask")
        return self.graph.add("ReduceSum", [inside, self._axis(1)])

    def _attention_bias(self, query: str, *documents: str, has_padding: bool = False) -> str:
        """Return what is added to the attention logits ``(n, 1, tokens, tokens)``: rows look at columns.

        Padding belongs to no part.
        """
        sides = [("query", query, document) for document in documents]
        sides += [("document", document, query) for document in documents]
        sides += [("other", *pair) for pair in permutations(documents, 2)]
        added = [self._between(side, rows, columns) for side, rows, columns in sides]
        if has_padding:
            padding = self._not(self.graph.add("Sum", [query, *documents]))
            row = self.graph.add("Unsqueeze", [padding, self._axis(1)])
            added.append(self.graph.add("Mul", [row, self._number("blocked", BLOCKED)]))
        return self.graph.add("Unsqueeze", [self.graph.add("Sum", added), self._axis(1)])

    def _between(self, side: str, rows: str, columns: str) -> str:
        """Return a side's bias where rows of one part meet columns of another, else 0: ``(n, tokens, tokens)``."""
        given = getattr(self._card.cross_bias, side)
        amount = self._number(f"bias.{side}", BLOCKED if given == CLOSED else given)
        row = self.graph.add("Unsqueeze", [columns, self._axis(1)])
        return self.graph.add("Mul", [self.graph.add("Mul", [self._column(rows), row]), amount])

    def _norm(self, parts: Sequence[str], name: str) -> str:
        scale, offset = (
            self.graph.constant(f"{name}.{part}", self._weights[f"{name}.{part}"]) for part in ("weight", "bias")
        )
        total = self.graph.add("Sum", parts)
        return self.graph.add("LayerNormalization", [total, scale, offset], axis=-1, epsilon=self._epsilon)

    def _linear(self, states: str, ours: str, theirs: Sequence[str]) -> str:
        """Return one product with several matrices side by side, and their biases."""
        bias = np.concatenate([self._weights[f"{name}.bias"] for name in theirs])
        return self.graph.add("Add", [self._product(states, ours, theirs), self.graph.constant(f"{ours}.bias", bias)])

    def _product(self, states: str, ours: str, theirs: Sequence[str]) -> str:
        matrix = np.concatenate([self._weights[f"{name}.weight"] for name in theirs]).T
        return self.graph.add("MatMul", [states, self.graph.constant(f"{ours}.weight", matrix)], ours)

    def _first(self, states: str) -> str:
        """Return the states of [CLS] ``(n, 1, hidden)``."""
        return self.graph.add("Slice", [states, self._axis(0), self._axis(1), self._axis(1)])

    def _squeezed(self, states: str) -> str:
        return self.graph.add("Squeeze", [states, self._axis(1)])

    def _column(self, mask: str) -> str:
        return self.graph.add("Unsqueeze", [mask, self._axis(2)])

    def _not(self, mask: str) -> str:
        return self.graph.add("Sub", [self._number("one.fp32", 1.0), mask])

    def _number(self, name: str, value: float) -> str:
        return self.graph.constant(name, np.array(value, dtype=np.float32))

    def _axis(self, number: int) -> str:
        return self.graph.constant(f"axis.{number}", np.array([number]))
