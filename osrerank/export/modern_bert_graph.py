"""Build the ONNX graph of a ModernBERT for sequences of the same length.

As in `osrerank.export.graph`, the graph needs no padding mask. If the head uses only the [CLS] state, the last layer
computes no other state.

With ModernBERT's local attention, a token attends only to the ``window`` nearest tokens on either side. The graph has
two branches. For short sequences, it computes attention between all pairs of tokens, and masks distant pairs. Longer
sequences are divided into blocks of ``window`` tokens. Each block attends to itself and to its two neighbours, so that
the cost grows with the number of tokens instead of its square.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from osrerank._optional import require
from osrerank.export.graph import TOKENS_SHAPE, Graph, Weights
from osrerank.export.head_graph import FLOAT32, RUNTIME_DOMAIN, add_head
from osrerank.scoring.card import ModelCard
from osrerank.scoring.modular.head import Head
from osrerank.scoring.modular.modern_bert import (
    CLASSIFIER_PREFIX,
    EMBEDDINGS,
    LAYER,
    ModernBertShape,
    build_classifier_head,
)

MASK_BIAS = -1e4
"""The value that is added to masked attention logits. Its exp is 0 in float32, and no number type overflows."""
MAX_MASKED_WINDOWS = 4
"""Sequences of up to this many windows are short: for them, a mask is faster than blocks."""


def build_modern_bert(weights: Weights, config: Mapping[str, Any], card: ModelCard, head: Head | None = None) -> Any:
    """Return a ModernBERT cross-encoder as an ``onnx.ModelProto`` in fp32.

    Its input is ``input_ids``, int64 ``(n, tokens)``. The rows of a batch must have the same length. Its output
    ``logits`` is float32 ``(n, labels)``.

    Args:
        weights: the weights under transformers' names, with or without a classifier's prefix.
        config: the model's ``config.json``, which `modern_bert.unsupported_reason` must accept.
        card: the model's card.
        head: the head of a modular cross-encoder. If it is None, the model has the head of a ModernBERT classifier.

    Raises:
        KeyError: a weight is missing.
    """
    unprefixed = {name.removeprefix(CLASSIFIER_PREFIX): array for name, array in weights.items()}
    head = head or build_classifier_head(config)
    encoder = ModernBertGraph(unprefixed, ModernBertShape.from_config(config))
    states = encoder.states(only_first=head.pooling == ("cls",))
    logits = add_head(encoder.graph, states, head, unprefixed)
    labels = 2 if card.head == "logits2" else 1
    return encoder.graph.model({"input_ids": TOKENS_SHAPE}, {"logits": (logits, ("n", labels))})


class ModernBertGraph:
    """Builds the graph of a ModernBERT from weights under transformers' names, without a classifier's prefix.

    Methods take and return the names of values in the graph. States are ``(n, tokens, hidden)``.
    """

    def __init__(self, weights: Weights, shape: ModernBertShape) -> None:
        self.graph = Graph()
        self._weights = weights
        self._shape = shape
        self._token_count = self.graph.add("Shape", ["input_ids"], start=1, end=2)  # (1,)
        limit = self.graph.add("Squeeze", [self._token_count, self.graph.axis(0)])
        positions = self.graph.add("Range", [self._int_scalar("zero", 0), limit, self._int_scalar("one", 1)])
        self._positions = self.graph.add("Cast", [positions], to=FLOAT32)
        self._rope = {base: self._rope_angles(base) for base in dict.fromkeys(shape.rope_bases)}
        windows = [window for window in dict.fromkeys(shape.windows) if window is not None]
        self._masks = {window: self._make_mask(window) for window in windows}  # window -> (is_short, mask)

    def states(self, *, only_first: bool) -> str:
        """Return the last states of all tokens, or only the [CLS] state ``(n, 1, hidden)``."""
        word = self._weight(EMBEDDINGS["word"], "weight")
        states = self._norm(self.graph.add("Gather", [word, "input_ids"]), EMBEDDINGS["norm"])
        last = len(self._shape.windows) - 1
        for layer in range(last + 1):
            states = self._layer(states, layer, only_first=only_first and layer == last)
        return self._norm(states, EMBEDDINGS["final_norm"])

    def _layer(self, states: str, layer: int, *, only_first: bool) -> str:
        """Return the states after a layer: of all tokens, or only of [CLS] ``(n, 1, hidden)``."""
        add = self.graph.add
        node_prefix = f"layers.{layer}"
        weight_names = {part: f"layers.{layer}.{name}" for part, name in LAYER.items()}
        normed = states
        if layer > 0:  # the embeddings are already normed
            normed = self._norm(states, weight_names["attention_norm"])
        projections = self._linear(normed, f"{node_prefix}.projections", weight_names["projections"])
        query, key, value = self.graph.add_node("Split", [projections], 3, axis=2, num_outputs=3)
        rope_base = self._shape.rope_bases[layer]
        window = self._shape.windows[layer]
        key = self._apply_rope(key, rope_base)
        if only_first:  # the query needs no RoPE, which changes nothing at position 0
            query = self._truncate(query, self.graph.axis(1))
            states = self._truncate(states, self.graph.axis(1))
            if window is not None:  # [CLS] attends to itself and to the ``window`` tokens after it
                window_end = self.graph.constant(f"window_end.{window}", np.array([window + 1]))
                key = self._truncate(key, window_end)
                value = self._truncate(value, window_end)
            context = self._attention(query, key, value)
        else:
            context = self._attend_to_window(self._apply_rope(query, rope_base), key, value, window)
        states = add("Add", [states, self._linear(context, f"{node_prefix}.attended", weight_names["attended"])])
        # the feed-forward network, whose inner states are multiplied by a gate
        normed = self._norm(states, weight_names["norm"])
        intermediate = self._linear(normed, f"{node_prefix}.widen", weight_names["widen"])
        inner, gate = self.graph.add_node("Split", [intermediate], 2, axis=2, num_outputs=2)
        gated = add("Mul", [add("Gelu", [inner], domain=RUNTIME_DOMAIN), gate])
        return add("Add", [states, self._linear(gated, f"{node_prefix}.narrow", weight_names["narrow"])])

    def _attend_to_window(self, query: str, key: str, value: str, window: int | None) -> str:
        """Return the context of attention within a window, or to all tokens if ``window`` is None."""
        if window is None:
            return self._attention(query, key, value)
        is_short, mask = self._masks[window]
        return self._if_else(
            is_short,
            lambda: self._attention(query, key, value, mask),
            lambda: self._block_attention(query, key, value, window, mask),
        )

    def _attention(self, query: str, key: str, value: str, mask: str = "") -> str:
        inputs = [query, key, value]
        if mask:
            inputs += ["", "", mask]  # the optional inputs before it, a bias and a padding mask, stay empty
        return self.graph.add("MultiHeadAttention", inputs, domain=RUNTIME_DOMAIN, num_heads=self._shape.heads)

    def _make_mask(self, window: int) -> tuple[str, str]:
        """Return two values: whether the sequences are short, and the mask that is added to the attention logits.

        The mask's shape is ``(1, 1, tokens, tokens)`` or, for long sequences, ``(n * blocks, 1, window, 3 * window)``.
        """
        limit = self.graph.constant(f"short.{window}", np.array([MAX_MASKED_WINDOWS * window]))
        is_short = self.graph.add("LessOrEqual", [self._token_count, limit])
        is_short = self.graph.add("Squeeze", [is_short, self.graph.axis(0)])
        return is_short, self._if_else(is_short, lambda: self._pair_mask(window), lambda: self._block_mask(window))

    def _pair_mask(self, window: int) -> str:
        """Return the mask of all pairs of tokens ``(1, 1, tokens, tokens)``, which hides distant tokens."""
        add = self.graph.add
        rows = add("Unsqueeze", [self._positions, self.graph.axis(1)])
        distances = add("Abs", [add("Sub", [rows, self._positions])])
        is_near = add("LessOrEqual", [distances, self._float_scalar(f"window.{window}", window)])
        return add("Unsqueeze", [self._mask_bias(is_near), self.graph.constant("axes.0.1", np.array([0, 1]))])

    def _block_mask(self, window: int) -> str:
        """Return the mask of blocks, which hides distant tokens and the padding at both ends of a sequence.

        A block's keys are its tokens and those of its two neighbours. The key in column j of a block that begins at
        position p has the position ``p + offsets[j]``.
        """
        add, constant = self.graph.add, self.graph.constant
        offsets = np.arange(3 * window) - window
        is_near = np.abs(offsets - np.arange(window)[:, None]) <= window  # (window, 3 * window)
        block_count = add("Squeeze", [self._block_count(window), self.graph.axis(0)])
        block_numbers = add("Range", [self._int_scalar("zero", 0), block_count, self._int_scalar("one", 1)])
        starts = add("Mul", [block_numbers, constant(f"window.{window}.int", np.array(window))])
        starts = add("Unsqueeze", [starts, constant("axes.1.2.3", np.array([1, 2, 3]))])  # (blocks, 1, 1, 1)
        key_positions = add("Add", [starts, constant(f"offsets.{window}", offsets)])  # (blocks, 1, 1, 3 * window)
        is_after_start = add("GreaterOrEqual", [key_positions, self._int_scalar("zero", 0)])
        is_inside = add("And", [is_after_start, add("Less", [key_positions, self._token_count])])
        mask = self._mask_bias(add("And", [is_inside, constant(f"near.{window}", is_near)]))
        # repeat the mask for each sequence of the batch
        n = add("Shape", ["input_ids"], start=0, end=1)
        one = constant("shape.1", np.array([1]))
        shape = add("Concat", [n, one, one, one, one], axis=0)
        masks = add("Expand", [add("Unsqueeze", [mask, self.graph.axis(0)]), shape])
        return add("Reshape", [masks, constant(f"mask.{window}", np.array([-1, 1, window, 3 * window]))])

    def _block_attention(self, query: str, key: str, value: str, window: int, mask: str) -> str:
        """Return the context of attention within a window. Each block attends to itself and to its two neighbours.

        Queries are padded at the end to whole blocks. Keys and values also get a block of padding at both ends.
        """
        add, constant, hidden = self.graph.add, self.graph.constant, self._shape.hidden
        width = constant(f"window.{window}.shape", np.array([window]))
        padding = add("Sub", [add("Mul", [self._block_count(window), width]), self._token_count])
        block_shape = constant(f"block.{window}", np.array([-1, window, hidden]))
        queries = add("Reshape", [self._pad(query, self.graph.axis(0), padding), block_shape])
        end_padding = add("Add", [padding, width])
        keys = self._with_neighbours(self._pad(key, width, end_padding), window)
        values = self._with_neighbours(self._pad(value, width, end_padding), window)
        context = self._attention(queries, keys, values, mask)
        n = add("Shape", ["input_ids"], start=0, end=1)
        shape = add("Concat", [n, constant("rest", np.array([-1, hidden]))], axis=0)
        return self._truncate(add("Reshape", [context, shape]), self._token_count)

    def _with_neighbours(self, states: str, window: int) -> str:
        """Return each block joined with its two neighbours ``(n * blocks, 3 * window, hidden)``.

        The states must have a block of padding at both ends.
        """
        add, constant, hidden = self.graph.add, self.graph.constant, self._shape.hidden
        block_shape = np.array([0, -1, window, hidden])  # 0 keeps n, and -1 stands for the number of blocks
        blocks = add("Reshape", [states, constant(f"blocks.{window}", block_shape)])
        # blocks[0:-2] are the left neighbours, blocks[1:-1] the blocks themselves, and blocks[2:] the right neighbours.
        ends = [-2, -1, np.iinfo(np.int64).max]
        neighbours = []
        for start, end in enumerate(ends):
            first = constant(f"from.{start}", np.array([start]))
            last = constant(f"to.{end}", np.array([end]))
            neighbours.append(add("Slice", [blocks, first, last, self.graph.axis(1)]))
        joined_blocks = add("Concat", neighbours, axis=2)
        shape = constant(f"joined_blocks.{window}", np.array([-1, 3 * window, hidden]))
        return add("Reshape", [joined_blocks, shape])

    def _pad(self, states: str, before: str, after: str) -> str:
        """Add ``before`` zero states at the beginning of each sequence, and ``after`` at its end."""
        zero = self.graph.axis(0)
        # the padding before each of the three axes, then after each of them
        widths = self.graph.add("Concat", [zero, before, zero, zero, after, zero], axis=0)
        return self.graph.add("Pad", [states, widths])

    def _block_count(self, window: int) -> str:
        """Return the number of blocks of a sequence ``(1,)``: the tokens divided by the window, rounded up."""
        last = self.graph.constant(f"last.{window}", np.array([window - 1]))
        size = self.graph.constant(f"window.{window}.shape", np.array([window]))
        return self.graph.add("Div", [self.graph.add("Add", [self._token_count, last]), size])

    def _mask_bias(self, is_visible: str) -> str:
        """Turn a bool mask into values to add to the attention logits: 0 where true, `MASK_BIAS` where false."""
        return self.graph.add(
            "Where", [is_visible, self._float_scalar("open", 0.0), self._float_scalar("blocked", MASK_BIAS)]
        )

    def _if_else(self, condition: str, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """Add a node that runs one of two branches, depending on a condition. Return the output of the branch."""
        helper = require("onnx", extra="onnx").helper
        outer_nodes = self.graph.nodes  # a branch has nodes of its own
        branches = {}
        for name, build_branch in (("then_branch", then), ("else_branch", otherwise)):
            self.graph.nodes = []
            output = helper.make_tensor_value_info(build_branch(), FLOAT32, None)
            branches[name] = helper.make_graph(self.graph.nodes, name, [], [output])
        self.graph.nodes = outer_nodes
        return self.graph.add("If", [condition], **branches)

    def _rope_angles(self, base: float) -> tuple[str, str]:
        """Return the cosines and sines of RoPE's angles, each ``(tokens, width / 2)``."""
        add, width = self.graph.add, self._shape.width  # of an attention head
        powers = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        frequencies = (1.0 / np.float32(base) ** powers).astype(np.float32)
        columns = self.graph.constant(f"frequencies.{base}", frequencies)
        angles = add("Mul", [add("Unsqueeze", [self._positions, self.graph.axis(1)]), columns])
        return add("Cos", [angles]), add("Sin", [angles])

    def _apply_rope(self, states: str, base: float) -> str:
        inputs = [states, self.graph.axis(0), *self._rope[base]]  # from position 0 on
        return self.graph.add("RotaryEmbedding", inputs, domain=RUNTIME_DOMAIN, num_heads=self._shape.heads)

    def _linear(self, states: str, node_name: str, weights_name: str) -> str:
        matrix = self.graph.constant(f"{node_name}.weight", self._weights[f"{weights_name}.weight"].T)
        product = self.graph.add("MatMul", [states, matrix], node_name)
        if f"{weights_name}.bias" not in self._weights:
            return product
        bias = self.graph.constant(f"{node_name}.bias", self._weights[f"{weights_name}.bias"])
        return self.graph.add("Add", [product, bias])

    def _norm(self, states: str, name: str) -> str:
        inputs = [states, self._weight(name, "weight")]
        if self._shape.has_norm_bias:
            inputs.append(self._weight(name, "bias"))
        return self.graph.add("LayerNormalization", inputs, axis=-1, epsilon=self._shape.epsilon)

    def _truncate(self, states: str, end: str) -> str:
        """Return the states of the tokens whose position is less than ``end``."""
        return self.graph.add("Slice", [states, self.graph.axis(0), end, self.graph.axis(1)])

    def _weight(self, name: str, parameter: str) -> str:
        return self.graph.constant(f"{name}.{parameter}", self._weights[f"{name}.{parameter}"])

    def _float_scalar(self, name: str, value: float) -> str:
        return self.graph.constant(name, np.array(value, dtype=np.float32))

    def _int_scalar(self, name: str, value: int) -> str:
        return self.graph.constant(name, np.array(value))
