"""Compute BERT without padding: the tokens of all sequences of a batch are concatenated ("packed").

The same code computes BERT (Devlin et al. 2019, arXiv 1810.04805), RoBERTa (Liu et al. 2019, arXiv 1907.11692) and
XLM-R, which differ in the names of their weights and in their position ids. Packing changes no score, because only
attention combines tokens, and a token attends only to tokens of its sequence. A classifier needs only the state of
[CLS], so the last layer computes only that state. The head is computed in fp32, whatever the encoder's number type.

In the shapes, ``tokens`` is the number of tokens in the batch, and ``n`` is the number of sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from osrerank.errors import InferenceError
from osrerank.scoring.backends.networks.attention import Attention, BatchAttention, Bounds, PartialAttention
from osrerank.scoring.backends.networks.heads import HeadNetwork
from osrerank.scoring.backends.networks.packing import Int32Array, PackedBatch, compute_offsets, pack
from osrerank.scoring.inputs import Tokens

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function from queries, keys and values, each ``(tokens, heads, width)``, to attention's output of the same shape,
the *context*."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
"""``hidden_act`` of ``config.json`` -> activation function."""


@dataclass(frozen=True, slots=True)
class BertFamily:
    """The names that transformers gives to the weights of a model family.

    Attributes:
        prefix: prefix of the names of the encoder's weights.
        pooler: name, without the prefix, of the head's first matrix. A tanh follows it.
        classifiers: transformers class -> name of the head's second matrix.
    """

    prefix: str
    pooler: str
    classifiers: Mapping[str, str]


BERT = BertFamily(
    prefix="bert.",
    pooler="pooler.dense",
    classifiers={
        "BertForSequenceClassification": "classifier",
        "BertForNextSentencePrediction": "cls.seq_relationship",
    },
)
ROBERTA = BertFamily(
    prefix="roberta.",
    pooler="classifier.dense",
    classifiers={
        "RobertaForSequenceClassification": "classifier.out_proj",
        "XLMRobertaForSequenceClassification": "classifier.out_proj",
    },
)
FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA, "camembert": ROBERTA}
"""``model_type`` of ``config.json`` -> names of the weights."""


class BertLayer(nn.Module):
    """A BERT layer. One matrix computes the query, key and value projections."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        inner = config["intermediate_size"]
        eps = config["layer_norm_eps"]
        self.heads = config["num_attention_heads"]
        self.activation = ACTIVATIONS[config.get("hidden_act", "gelu")]
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.attended = nn.Linear(hidden, hidden)  # attention's output projection
        self.attended_norm = nn.LayerNorm(hidden, eps=eps)
        self.widen = nn.Linear(hidden, inner)
        self.narrow = nn.Linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden, eps=eps)

    def forward(self, states: Tensor, attend: Attend) -> Tensor:
        """Return the next states ``(tokens, hidden)``."""
        query, key, value = self._split_projections(self.projections(states), 3)
        return self._finish_layer(states, attend(query, key, value).flatten(1))

    def forward_selected(self, states: Tensor, indices: Tensor, attend: Attend) -> Tensor:
        """Return the next states ``(selected, hidden)`` of the tokens at ``indices``. They attend to all tokens."""
        weight, bias = self.projections.weight, self.projections.bias
        hidden = states.shape[1]
        selected = states.index_select(0, indices)
        # the first third of the matrix computes the queries
        (query,) = self._split_projections(functional.linear(selected, weight[:hidden], bias[:hidden]), 1)
        key, value = self._split_projections(functional.linear(states, weight[hidden:], bias[hidden:]), 2)
        return self._finish_layer(selected, attend(query, key, value).flatten(1))

    def _finish_layer(self, states: Tensor, context: Tensor) -> Tensor:
        """Return the layer's output from its input ``states`` and the attention's ``context``, ``(tokens, hidden)``."""
        states = self.attended_norm(states + self.attended(context))
        finished: Tensor = self.norm(states + self.narrow(self.activation(self.widen(states))))
        return finished

    def _split_projections(self, projected: Tensor, count: int) -> tuple[Tensor, ...]:
        """Split concatenated projections into ``count`` tensors ``(tokens, heads, width)``."""
        return tuple(projected.view(len(projected), count, self.heads, -1).unbind(1))


class PackedEncoder(Protocol):
    """The interface of encoders that compute packed batches."""

    def prepare_ids(self, packed: PackedBatch) -> list[Int32Array]:
        """Check and return the ids that `encode` needs, each ``(tokens,)``.

        Raises:
            InferenceError: the encoder has no embedding for an id.
        """

    def encode(self, ids: Sequence[Tensor], bounds: Bounds, attention: Attention) -> Tensor:
        """Return the last states ``(tokens, hidden)``. ``ids`` are the arrays of `prepare_ids` as tensors."""

    def encode_first(self, ids: Sequence[Tensor], bounds: Bounds, first_bounds: Bounds, attention: Attention) -> Tensor:
        """Return the last state of each sequence's first token ``(n, hidden)``.

        ``first_bounds`` are the bounds of the first tokens, as n sequences of one token. For the other arguments, see
        `encode`.
        """


class BertEncoder(nn.Module):
    """The embeddings and layers of a BERT, as a `PackedEncoder`.

    Args:
        config: content of ``config.json``.
        first_position: position id of a sequence's first token.
    """

    def __init__(self, config: Mapping[str, Any], first_position: int = 0) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.first_position = first_position
        self.word = nn.Embedding(config["vocab_size"], hidden)
        self.position = nn.Embedding(config["max_position_embeddings"], hidden)
        self.segment = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps=config["layer_norm_eps"])
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config["num_hidden_layers"]))

    @property
    def typed_layers(self) -> tuple[BertLayer, ...]:
        """The layers, first to last. `torch.nn.ModuleList` does not know their type."""
        return tuple(layer for layer in self.layers if isinstance(layer, BertLayer))

    def encode(self, ids: Sequence[Tensor], bounds: Bounds, attention: Attention) -> Tensor:
        return self._run_layers(self.typed_layers, ids, bounds, attention)

    def encode_first(self, ids: Sequence[Tensor], bounds: Bounds, first_bounds: Bounds, attention: Attention) -> Tensor:
        *layers, last = self.typed_layers
        states = self._run_layers(layers, ids, bounds, attention)
        first_tokens = bounds.offsets[:-1]
        attend = partial(attention, query_bounds=first_bounds, key_bounds=bounds)
        return last.forward_selected(states, first_tokens, attend)

    def _run_layers(
        self, layers: Sequence[BertLayer], ids: Sequence[Tensor], bounds: Bounds, attention: Attention
    ) -> Tensor:
        """Embed tokens, and return their states after these layers. ``ids`` are the arrays of `prepare_ids`."""
        token_ids, positions, segments = ids
        states: Tensor = self.norm(self.word(token_ids) + self.position(positions) + self.segment(segments))
        for layer in layers:
            states = layer(states, partial(attention, query_bounds=bounds, key_bounds=bounds))
        return states

    def prepare_ids(self, packed: PackedBatch) -> list[Int32Array]:
        """Check and return the ids of tokens, positions and segments, each ``(tokens,)``.

        In a model with a single segment, all segment ids are 0. The check is needed because an id without an embedding
        would make CUDA unusable for the whole process.

        Raises:
            InferenceError: the model has no embedding for an id, or a sequence is empty.
        """
        if packed.lengths.min() == 0:
            raise InferenceError("a sequence has no tokens")
        positions = packed.positions + np.int32(self.first_position)
        has_segments = self.segment.num_embeddings > 1
        segments = packed.segments if has_segments else np.zeros_like(packed.segments)
        check_ids("token", packed.ids, self.word.num_embeddings)
        check_ids("position", positions, self.position.num_embeddings)
        check_ids("segment", segments, self.segment.num_embeddings)
        return [packed.ids, positions, segments]


def check_ids(name: str, ids: Int32Array, n_rows: int) -> None:
    """Check that an embedding table with ``n_rows`` rows has one for each id.

    Raises:
        InferenceError: an id is negative, or not below ``n_rows``.
    """
    for id_ in (ids.min(), ids.max()):
        if not 0 <= id_ < n_rows:
            reason = f"a {name} id is {id_}, but the model has only the ids 0 to {n_rows - 1}"
            raise InferenceError(f"{reason}; check that tokenizer.json and config.json belong to the model")


class PackedNetwork(nn.Module):
    """An encoder and a head, which compute a cross-encoder's logits or a bi-encoder's vectors."""

    def __init__(self, encoder: PackedEncoder, attention: BatchAttention, head: HeadNetwork) -> None:
        super().__init__()
        self.encoder = encoder
        self.attention = attention
        self.head = head

    def pack(self, sequences: Sequence[Tokens]) -> list[Int32Array]:
        """Return the arrays that `forward` takes as tensors.

        They are the encoder's ids, the sequences' offsets, the offsets of n sequences of one token (the numbers 0 to
        n), and the sequences' lengths.

        Raises:
            InferenceError: the model has no embedding for an id.
        """
        packed = pack(sequences)
        first_offsets = np.arange(len(sequences) + 1, dtype=np.int32)
        return [*self.encoder.prepare_ids(packed), compute_offsets(packed.lengths), first_offsets, packed.lengths]

    def forward(self, inputs: Sequence[Tensor], lengths: Int32Array) -> Tensor:
        """Return the logits ``(n, labels)`` or vectors of a batch in fp32.

        ``inputs`` are the arrays from `pack` as tensors on the device. ``lengths`` is the last of these arrays in host
        memory.
        """
        *ids, sequence_offsets, first_offsets, _device_lengths = inputs
        bounds = Bounds(sequence_offsets, lengths)
        if self.head.needs_first_only:
            first_bounds = Bounds(first_offsets, np.ones_like(lengths))
            states = self.encoder.encode_first(ids, bounds, first_bounds, self.attention).float()
        else:
            states = self.head.pool(self.encoder.encode(ids, bounds, self.attention).float(), bounds)
        outputs: Tensor = self.head(states)
        return outputs


class PackedTokenNetwork(PackedNetwork):
    """An encoder and a head for late interaction, which compute a vector for each token ``(tokens, dimensions)``.

    The last tokens of a sequence, such as the [MASK] tokens that expand a query, can be unattended
    (`Tokens.unattended`). They attend to the other tokens, but no token attends to them.
    """

    def pack(self, sequences: Sequence[Tokens]) -> list[Int32Array]:
        """Return the encoder's ids, and the offsets, indices and lengths that `forward` takes."""
        packed = pack(sequences)
        attended_lengths = packed.lengths - np.array([tokens.unattended for tokens in sequences], dtype=np.int32)
        is_attended = packed.positions < np.repeat(attended_lengths, packed.lengths)
        return [
            *self.encoder.prepare_ids(packed),
            compute_offsets(packed.lengths),
            compute_offsets(attended_lengths),
            np.flatnonzero(is_attended).astype(np.int32),
            np.concatenate([packed.lengths, attended_lengths]),
        ]

    def forward(self, inputs: Sequence[Tensor], lengths: Int32Array) -> Tensor:
        *ids, sequence_offsets, attended_offsets, attended_indices, _device_lengths = inputs
        sequence_lengths, attended_lengths = np.split(lengths, 2)
        attention: Attention = self.attention
        if len(attended_indices) < len(ids[0]):
            attention = PartialAttention(attention, attended_indices, Bounds(attended_offsets, attended_lengths))
        states = self.encoder.encode(ids, Bounds(sequence_offsets, sequence_lengths), attention)
        vectors: Tensor = self.head(states.float())
        return vectors
