"""BERT's forward pass without padding: the tokens of all sequences of a batch are packed end to end.

Devlin et al. 2019 (arXiv 1810.04805) and, with other names and positions, RoBERTa (Liu et al. 2019, arXiv 1907.11692)
and XLM-R. Packing changes no score: only attention mixes rows, and it keeps sequences apart. A classifier reads only
the [CLS] row, so its last layer computes nothing else; keys and values are still those of all tokens. The head is
computed in fp32, whatever the encoder's type.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.errors import InferenceError
from osrerank.scoring.backends.networks.attention import Attention, Bounds, Partial
from osrerank.scoring.backends.networks.heads import HeadNetwork
from osrerank.scoring.backends.networks.packing import Numbers, Packed, offsets, pack
from osrerank.scoring.inputs import Tokens

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys, values, each ``(tokens, heads, width)`` -> context ``(tokens, heads, width)``."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True, slots=True)
class BertFamily:
    """The differences within BERT's family.

    Attributes:
        prefix: the prefix of the encoder's weights.
        pooler: the head's first matrix, whose tanh the second reads; by its name without the prefix.
        classifiers: architecture -> the head's second matrix.
    """

    prefix: str
    pooler: str
    classifiers: Mapping[str, str]


BERT = BertFamily(
    "bert.",
    "pooler.dense",
    {"BertForSequenceClassification": "classifier", "BertForNextSentencePrediction": "cls.seq_relationship"},
)
ROBERTA = BertFamily(
    "roberta.",
    "classifier.dense",
    {
        "RobertaForSequenceClassification": "classifier.out_proj",
        "XLMRobertaForSequenceClassification": "classifier.out_proj",
    },
)
FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA, "camembert": ROBERTA}


class BertLayer(nn.Module):
    """One BERT layer; query, key and value projections are one matrix."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, inner, eps = config["hidden_size"], config["intermediate_size"], config["layer_norm_eps"]
        self.heads = config["num_attention_heads"]
        self.activation = ACTIVATIONS[config.get("hidden_act", "gelu")]
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.attended = nn.Linear(hidden, hidden)
        self.attended_norm = nn.LayerNorm(hidden, eps=eps)
        self.widen = nn.Linear(hidden, inner)
        self.narrow = nn.Linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden, eps=eps)

    def forward(self, states: Tensor, attend: Attend) -> Tensor:
        """Return the next states ``(tokens, hidden)``."""
        query, key, value = self.apart(self.projections(states), 3)
        return self.finish(states, attend(query, key, value).flatten(1))

    def rows(self, states: Tensor, chosen: Tensor, attend: Attend) -> Tensor:
        """Return the next states of some rows ``(rows, hidden)``; keys and values come from all.

        Args:
            states: ``(tokens, hidden)``.
            chosen: the rows, int32 ``(rows,)``.
            attend: takes queries of the rows.
        """
        weight, bias = self.projections.weight, self.projections.bias
        hidden = states.shape[1]
        states_of_rows = states.index_select(0, chosen)
        (query,) = self.apart(functional.linear(states_of_rows, weight[:hidden], bias[:hidden]), 1)
        key, value = self.apart(functional.linear(states, weight[hidden:], bias[hidden:]), 2)
        return self.finish(states_of_rows, attend(query, key, value).flatten(1))

    def finish(self, states: Tensor, context: Tensor) -> Tensor:
        """Return the next states of rows from their own and their context, each ``(rows, hidden)``."""
        states = self.attended_norm(states + self.attended(context))
        finished: Tensor = self.norm(states + self.narrow(self.activation(self.widen(states))))
        return finished

    def apart(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return each of the projections that lie side by side, as ``(tokens, heads, width)``."""
        return tuple(projected.view(len(projected), parts, self.heads, -1).unbind(1))


class BertEncoder(nn.Module):
    """Embeddings and layers.

    Args:
        config: ``config.json``.
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
    def dtype(self) -> torch.dtype:
        """The layers' type of number."""
        return self.stack[0].projections.weight.dtype

    @property
    def stack(self) -> tuple[BertLayer, ...]:
        """The layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, BertLayer))

    def embed(self, ids: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Return the first states ``(tokens, hidden)``; all inputs are int32 ``(tokens,)``, rows of the tables."""
        normed: Tensor = self.norm(self.word(ids) + self.position(positions) + self.segment(segments))
        return normed

    def states(self, rows: Sequence[Tensor], whole: Bounds, attention: Attention) -> Tensor:
        """As `ClassifierEncoder.states`."""
        states = self.embed(*rows)
        for layer in self.stack:
            states = layer(states, partial(attention, rows=whole, columns=whole))
        return states

    def first_states(self, rows: Sequence[Tensor], whole: Bounds, firsts: Bounds, attention: Attention) -> Tensor:
        """As `ClassifierEncoder.first_states`: the last layer computes no other rows."""
        states = self.embed(*rows)
        *layers, last = self.stack
        for layer in layers:
            states = layer(states, partial(attention, rows=whole, columns=whole))
        return last.rows(states, whole.offsets[:-1], partial(attention, rows=firsts, columns=whole))

    def rows(self, packed: Packed) -> list[Numbers]:
        """Return the rows of the tables that tokens, positions and segments have, each ``(tokens,)``.

        A model with one segment row has no segments. Ids beyond the tables are refused here, because a GPU would be
        unusable after them.

        Raises:
            InferenceError: an id has no row, or a sequence lacks a part.
        """
        if packed.lengths.min() == 0:
            raise InferenceError("a sequence has no query or no document part")
        has_segments = self.segment.num_embeddings > 1
        segments = packed.segments if has_segments else np.zeros_like(packed.segments)
        rows = [packed.ids, packed.positions + np.int32(self.first_position), segments]
        tables = (self.word, self.position, self.segment)
        for name, values, table in zip(("token", "position", "segment"), rows, tables, strict=True):
            check_rows(name, values, table.num_embeddings)
        return rows


def check_rows(name: str, values: Numbers, rows: int) -> None:
    """Refuse ids that a table has no row for.

    Raises:
        InferenceError: one is below 0, or ``rows`` or more.
    """
    if values.min() < 0 or values.max() >= rows:
        reason = f"a {name} id is {values.max()}, and the model has {rows} rows for them"
        raise InferenceError(f"{reason}; check that tokenizer.json and config.json are the model's own")


class PackedNetwork(nn.Module, ABC):
    """A network that computes packed batches.

    Args:
        attention: how rows look at columns.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    @abstractmethod
    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        """Return the arrays that `forward` takes as tensors, ids, positions and segments first.

        Raises:
            InferenceError: the model has no embedding for one of them.
        """

    @abstractmethod
    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        """Return the head's outputs ``(n, labels)``, or an encoder's vectors ``(n, hidden)``, fp32.

        Args:
            inputs: what `pack` made, on the device.
            lengths: the last of what `pack` made: tokens of each part, in host memory.
        """


class ClassifierEncoder(Protocol):
    """An encoder whose states a head reads."""

    def rows(self, packed: Packed) -> list[Numbers]:
        """Return the rows of its tables, as `BertEncoder.rows` does."""

    def states(self, rows: Sequence[Tensor], whole: Bounds, attention: Attention) -> Tensor:
        """Return the last states ``(tokens, hidden)``.

        Args:
            rows: what `rows` made, on the device.
            whole: where the sequences lie.
            attention: how rows look at columns.
        """

    def first_states(self, rows: Sequence[Tensor], whole: Bounds, firsts: Bounds, attention: Attention) -> Tensor:
        """Return those of each sequence's first token ``(n, hidden)``.

        Args:
            rows: what `rows` made, on the device.
            whole: where the sequences lie.
            firsts: n sequences of one token.
            attention: how rows look at columns.
        """


class PackedClassifier(PackedNetwork):
    """An encoder and a head, which gives a cross-encoder's logits or a bi-encoder's vectors.

    Args:
        encoder: the encoder.
        attention: how rows look at columns.
        head: reads the encoder's states.
    """

    def __init__(self, encoder: ClassifierEncoder, attention: Attention, head: HeadNetwork) -> None:
        super().__init__(attention)
        self.encoder = encoder
        self.head = head

    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        packed = pack(sequences)
        firsts = np.arange(len(sequences) + 1, dtype=np.int32)
        return [*self.encoder.rows(packed), offsets(packed.lengths), firsts, packed.lengths]

    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        *rows, whole_offsets, first_offsets, _ = inputs
        whole, firsts = Bounds(whole_offsets, lengths), Bounds(first_offsets, np.ones_like(lengths))
        if self.head.reads_first_alone:
            vectors = self.encoder.first_states(rows, whole, firsts, self.attention).float()
        else:
            vectors = self.head.pooled(self.encoder.states(rows, whole, self.attention).float(), whole)
        logits: Tensor = self.head(vectors)
        return logits


class PackedTokens(PackedClassifier):
    """An encoder of late interaction, which gives the vectors of all tokens, packed ``(tokens, dimensions)``."""

    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        packed = pack(sequences)
        seen = packed.lengths - np.array([one.unattended for one in sequences], dtype=np.int32)
        indices = np.flatnonzero(packed.positions < np.repeat(seen, packed.lengths)).astype(np.int32)
        lengths = np.concatenate([packed.lengths, seen])
        return [*self.encoder.rows(packed), offsets(packed.lengths), offsets(seen), indices, lengths]

    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        *rows, whole_offsets, seen_offsets, indices, _ = inputs
        whole, seen = (Bounds(*pair) for pair in zip((whole_offsets, seen_offsets), np.split(lengths, 2), strict=True))
        attention = self.attention if len(indices) == len(rows[0]) else Partial(self.attention, indices, seen)
        vectors: Tensor = self.head(self.encoder.states(rows, whole, attention).float())
        return vectors
