"""Packed forward passes of the layouts that read a bi-encoder's weights: ``cross-bias`` and ``joined``."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from osrerank.scoring.card import BEYOND, SEGMENTS, CrossBias, Joining, Kind
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.networks.attention import Attention, Bounds, merged
from osrerank.scoring.networks.bert import Encoder, PackedNetwork
from osrerank.scoring.networks.cross_bias import likeness, pooled_length, raw_scores
from osrerank.scoring.networks.packing import Numbers, offsets, pack_by_segment

Block = tuple[Bounds, slice]
"""One segment of every sequence: where each begins and ends in it, and where it lies among all tokens."""


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
        super().__init__(attention)
        self.encoder = encoder
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


class PackedJoined(PackedNetwork):
    """The ``joined`` layout (`joined`): queries, then documents.

    All rows go through all layers as they are alone. Beside them, the queries' rows go through the last layers a second
    time, where they see the documents' too; the two attentions are merged by their log-sum-exps.

    Args:
        encoder: the encoder.
        attention: how rows look at columns.
        joining: how the query looks at the document; all its rows do, or one layer is joined.
    """

    def __init__(self, encoder: Encoder, attention: Attention, joining: Joining) -> None:
        super().__init__(attention)
        self.encoder = encoder
        self.joining = joining

    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        packed = pack_by_segment(sequences, 2)
        queries, documents = np.split(packed.lengths, 2)
        bounds = [offsets(part) for part in (queries, documents, packed.lengths)]
        return [*self.encoder.rows(packed), *bounds, packed.lengths]

    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        ids, positions, segments, query_offsets, document_offsets, part_offsets, part_lengths = inputs
        own_lengths, document_lengths = np.split(lengths, 2)
        parts = Bounds(part_offsets, lengths)
        queries, documents = Bounds(query_offsets, own_lengths), Bounds(document_offsets, document_lengths)
        tokens = int(own_lengths.sum())
        states = self.encoder.embed(ids, positions, segments)
        joined = states[:tokens]
        for back, layer in zip(range(len(self.encoder.stack), 0, -1), self.encoder.stack, strict=True):
            query, key, value = layer.apart(layer.projections(states), 3)
            alone = layer.finish(states, self.attention(query, key, value, parts, parts).flatten(1))
            if back > self.joining.layers:
                joined = alone[:tokens]
            else:
                asked, own_key, own_value = layer.apart(layer.projections(joined), 3)
                own = self.attention.with_lse(asked, own_key, own_value, queries, queries)
                seen = self.attention.with_lse(asked, key[tokens:], value[tokens:], queries, documents)
                context = merged(own, (*seen, self.joining.bias))
                joined = layer.finish(joined, context.flatten(1))
            states = alone
        plain, document = self._vectors(states, part_offsets, part_lengths).chunk(2)
        query = self._vectors(joined, query_offsets, part_lengths[: len(own_lengths)])
        share = self.joining.cosine_share
        return (((1 - share) * query + share * plain) * document).sum(dim=1, keepdim=True)

    def _vectors(self, states: Tensor, begins: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors of parts, of norm 1, fp32 ``(parts, hidden)``."""
        if self.joining.pooling == "cls":
            return functional.normalize(states.index_select(0, begins[:-1]).float(), dim=-1)
        means = torch.segment_reduce(states.float(), "mean", lengths=lengths.long(), unsafe=True)
        return functional.normalize(means, dim=-1)


def _blocks(bounds: Sequence[Bounds]) -> list[Block]:
    ends = np.cumsum([0, *(int(one.lengths.sum()) for one in bounds)])
    return [(one, slice(int(start), int(end))) for one, (start, end) in zip(bounds, pairwise(ends), strict=True)]
