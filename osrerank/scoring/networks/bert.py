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
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.errors import InferenceError
from osrerank.scoring.card import BEYOND, SEGMENTS, CrossBias, Kind, ModelCard
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.networks.attention import Attention, Bounds, merged
from osrerank.scoring.networks.bert_weights import PARTS, encoder_weights, plain_names
from osrerank.scoring.networks.cross_bias import likeness, pooled_length, raw_scores
from osrerank.scoring.networks.packing import Numbers, Packed, offsets, pack, pack_by_segment

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys, values, each ``(tokens, heads, width)`` -> context ``(tokens, heads, width)``."""
Block = tuple[Bounds, slice]
"""One segment of every sequence: where each begins and ends in it, and where it lies among all tokens."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True, slots=True)
class Family:
    """The differences within BERT's family.

    Attributes:
        prefix: of the encoder's weights.
        pooler: the head's first matrix, whose tanh the second reads; by its name without the prefix.
        classifiers: architecture -> the head's second matrix.
        counts_from_padding: whether the first position is the padding id + 1 rather than 0.
    """

    prefix: str
    pooler: str
    classifiers: Mapping[str, str]
    counts_from_padding: bool


BERT = Family(
    "bert.",
    "pooler.dense",
    {"BertForSequenceClassification": "classifier", "BertForNextSentencePrediction": "cls.seq_relationship"},
    counts_from_padding=False,
)
ROBERTA = Family(
    "roberta.",
    "classifier.dense",
    {
        "RobertaForSequenceClassification": "classifier.out_proj",
        "XLMRobertaForSequenceClassification": "classifier.out_proj",
    },
    counts_from_padding=True,
)
FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA}


def obstacle(config: Mapping[str, Any], card: ModelCard) -> str:
    """Return why this module cannot compute a model, or nothing."""
    kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    architecture = next(iter(config.get("architectures") or ["nothing"]))
    if kind not in FAMILIES:
        return f"model_type is {kind}"
    if card.layout == "cross-bias" and kind != "bert":
        return f"the layout is cross-bias, model_type {kind}"
    if card.layout == "standard" and architecture not in FAMILIES[kind].classifiers:
        return f"architecture is {architecture}"
    if activation not in ACTIVATIONS:
        return f"hidden_act is {activation}"
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("is_decoder"):
        return "its positions are relative, or it is a decoder"
    return ""


class Layer(nn.Module):
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
        query, key, value = self._heads(self.projections(states), 3)
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
        (query,) = self._heads(functional.linear(states_of_rows, weight[:hidden], bias[:hidden]), 1)
        key, value = self._heads(functional.linear(states, weight[hidden:], bias[hidden:]), 2)
        return self.finish(states_of_rows, attend(query, key, value).flatten(1))

    def finish(self, states: Tensor, context: Tensor) -> Tensor:
        """Return the next states of rows from their own and their context, each ``(rows, hidden)``."""
        states = self.attended_norm(states + self.attended(context))
        finished: Tensor = self.norm(states + self.narrow(self.activation(self.widen(states))))
        return finished

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return each of the projections that lie side by side, as ``(tokens, heads, width)``."""
        return tuple(projected.view(len(projected), parts, self.heads, -1).unbind(1))


class Encoder(nn.Module):
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
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    @property
    def dtype(self) -> torch.dtype:
        """The layers' type of number."""
        return self.stack[0].projections.weight.dtype

    @property
    def stack(self) -> tuple[Layer, ...]:
        """The layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, Layer))

    def embed(self, ids: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Return the first states ``(tokens, hidden)``; all inputs are int32 ``(tokens,)``, rows of the tables."""
        normed: Tensor = self.norm(self.word(ids) + self.position(positions) + self.segment(segments))
        return normed

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
            if values.min() < 0 or values.max() >= table.num_embeddings:
                reason = f"a {name} id is {values.max()}, and the model has {table.num_embeddings} rows for them"
                raise InferenceError(f"{reason}; check that tokenizer.json and config.json are the model's own")
        return rows


class PackedNetwork(nn.Module, ABC):
    """A network that computes packed batches.

    Args:
        encoder: what the sequences go through.
        attention: how rows look at columns.
    """

    def __init__(self, encoder: Encoder, attention: Attention) -> None:
        super().__init__()
        self.encoder = encoder
        self.attention = attention

    @abstractmethod
    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        """Return the arrays that `forward` takes as tensors, ids, positions and segments first.

        Raises:
            InferenceError: the model has no embedding for one of them.
        """

    @abstractmethod
    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        """Return the head's outputs ``(n, labels)``, fp32.

        Args:
            inputs: what `pack` made, on the device.
            lengths: the last of what `pack` made: tokens of each part, in host memory.
        """


class PackedClassifier(PackedNetwork):
    """The standard layout: an encoder, the [CLS] rows of its last layer, and a head of two matrices.

    Args:
        encoder: the encoder.
        attention: how rows look at columns.
        labels: outputs of the head.
    """

    def __init__(self, encoder: Encoder, attention: Attention, labels: int) -> None:
        super().__init__(encoder, attention)
        hidden = encoder.word.embedding_dim
        self.pooler = nn.Linear(hidden, hidden)
        self.classifier = nn.Linear(hidden, labels)

    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        packed = pack(sequences)
        firsts = np.arange(len(sequences) + 1, dtype=np.int32)
        return [*self.encoder.rows(packed), offsets(packed.lengths), firsts, packed.lengths]

    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        ids, positions, segments, whole_offsets, first_offsets, *_ = inputs
        whole, firsts = Bounds(whole_offsets, lengths), Bounds(first_offsets, np.ones_like(lengths))
        states = self.encoder.embed(ids, positions, segments)
        *layers, last = self.encoder.stack
        for layer in layers:
            states = layer(states, partial(self.attention, rows=whole, columns=whole))
        attend = partial(self.attention, rows=firsts, columns=whole)
        cls = last.rows(states, whole_offsets[:-1], attend).float()  # (n, hidden)
        logits: Tensor = self.classifier(torch.tanh(self.pooler(cls)))
        return logits


class PackedCrossBias(PackedNetwork):
    """The ``cross-bias`` layout (`cross_bias`): queries, then documents, then second documents.

    Each layer attends within every query and every document in one call, then from one block to another where the card
    opens it. The results are merged by their log-sum-exps, with the biases added to those of other blocks. If the card
    says so, documents are pooled before.

    Args:
        encoder: the encoder.
        attention: how rows look at columns.
        bias: what the layout adds.
        kind: ``mono`` for two blocks, ``duo`` for three.
    """

    def __init__(self, encoder: Encoder, attention: Attention, bias: CrossBias, *, kind: Kind = "mono") -> None:
        super().__init__(encoder, attention)
        self.bias = bias
        self.segments = SEGMENTS[kind]

    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        packed = pack_by_segment(sequences, self.segments)
        lengths = packed.lengths
        pooled = self._pooled_lengths(lengths)
        bounds = [offsets(part) for part in (*np.split(pooled, self.segments), pooled)]
        return [*self.encoder.rows(packed), lengths, *bounds, pooled]

    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        ids, positions, segments, pieces, *block_offsets, part_offsets, part_lengths = inputs
        block_lengths = np.split(lengths, self.segments)
        bounds = [Bounds(begins, tokens) for begins, tokens in zip(block_offsets, block_lengths, strict=True)]
        attend = partial(self._attend, parts=Bounds(part_offsets, lengths), blocks=_blocks(bounds))
        states = self.encoder.embed(ids, positions, segments)
        if self.bias.pools:
            states = self._pooled(states.float(), pieces, part_lengths, int(lengths.sum())).to(self.encoder.dtype)
        for layer in self.encoder.stack:
            states = layer(states, attend)
        means = torch.segment_reduce(states.float(), "mean", lengths=part_lengths.long(), unsafe=True)
        return raw_scores(self.bias, *means.chunk(self.segments))  # each (n, hidden)

    def _pooled_lengths(self, pieces: Numbers) -> Numbers:
        """Return how many states each part gets for its pieces ``(parts,)``, queries first."""
        if not self.bias.pools:
            return pieces
        queries, *documents = np.split(pieces, self.segments)
        counts = [pooled_length(torch.from_numpy(part), self.bias.pool_factor).numpy() for part in documents]
        return np.concatenate([queries, *counts]).astype(np.int32)

    def _pooled(self, states: Tensor, pieces: Tensor, wanted: Tensor, rows: int) -> Tensor:
        """Return the means of similar neighbours in each part, as `cross_bias.Pool` computes them.

        Args:
            states: fp32 ``(tokens, hidden)``.
            pieces: of each part ``(parts,)``, queries first.
            wanted: how many states each part is to have ``(parts,)``.
            rows: the sum of that.
        """
        part = torch.repeat_interleave(torch.arange(len(pieces), device=states.device), pieces, output_size=len(states))
        begins = (pieces.cumsum(0) - pieces).long()
        like = functional.pad(likeness(states), (1, 0)).index_fill(0, begins, -BEYOND)
        order = like.argsort(stable=True)
        order = order[part[order].argsort(stable=True)]
        place = torch.empty_like(order)
        place[order] = torch.arange(len(states), device=states.device) - begins[part]
        run = (place < wanted[part]).cumsum(0) - 1
        sizes = torch.zeros(rows, dtype=torch.long, device=states.device).index_add_(0, run, torch.ones_like(run))
        return torch.segment_reduce(states, "mean", lengths=sizes, unsafe=True)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, parts: Bounds, blocks: Sequence[Block]) -> Tensor:
        """Return the context of all tokens ``(tokens, heads, width)``."""
        context, lse = self.attention.with_lse(query, key, value, parts, parts)
        seen = []
        for number, (rows, own) in enumerate(blocks):
            between = []
            for other, bias in self.bias.seen_from(number, self.segments):
                columns, its = blocks[other]
                found = self.attention.with_lse(query[own], key[its], value[its], rows, columns)
                between.append((*found, bias))
            seen.append(merged((context[own], lse[:, own]), *between))
        return torch.cat(seen)


def _blocks(bounds: Sequence[Bounds]) -> list[Block]:
    ends = np.cumsum([0, *(int(one.lengths.sum()) for one in bounds)])
    return [(one, slice(int(start), int(end))) for one, (start, end) in zip(bounds, pairwise(ends), strict=True)]


def load_packed(
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    card: ModelCard,
    *,
    attention: Attention,
    dtype: torch.dtype,
) -> PackedNetwork:
    """Return a network with a checkpoint's weights, in evaluation mode; the encoder in ``dtype``, the head in fp32.

    Args:
        weights: the checkpoint's, by its own names.
        config: ``config.json``; `obstacle` finds nothing against it.
        card: the layout.
        attention: how rows look at columns.
        dtype: of the encoder, except that the embeddings of a model that pools documents stay fp32.

    Raises:
        KeyError: a weight is missing.
    """
    family = FAMILIES[config["model_type"]]
    plain = plain_names(weights, family.prefix)
    first_position = int(config["pad_token_id"]) + 1 if family.counts_from_padding else 0
    encoder = Encoder(config, first_position)
    encoder.load_state_dict(encoder_weights(plain, config["num_hidden_layers"]))
    if not card.cross_bias.pools:
        encoder.to(dtype)
    else:  # in 16 bits, other pieces would share a state
        encoder.layers.to(dtype)
    if card.layout == "cross-bias":
        return PackedCrossBias(encoder, attention, card.cross_bias, kind=card.kind).eval()
    second = family.classifiers[config["architectures"][0]]
    network = PackedClassifier(encoder, attention, labels=len(plain[f"{second}.weight"]))
    for ours, theirs in ((network.pooler, family.pooler), (network.classifier, second)):
        ours.load_state_dict({part: plain[f"{theirs}.{part}"] for part in PARTS})
    return network.eval()
