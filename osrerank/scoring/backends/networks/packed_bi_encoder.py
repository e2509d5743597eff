"""A BERT bi-encoder's forward pass on packed sequences, which are stored end to end without padding."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from osrerank.scoring.backends.networks.attention import Attention, Bounds
from osrerank.scoring.backends.networks.bert import Encoder, PackedNetwork
from osrerank.scoring.backends.networks.packing import Numbers, offsets, pack
from osrerank.scoring.card import Pooling
from osrerank.scoring.inputs import Tokens


class PackedBiEncoder(PackedNetwork):
    """Computes the vectors of texts, each read by itself.

    `osrerank.scoring.backends.networks.bi_encoder` is the reference implementation.

    Args:
        encoder: the BERT layers.
        attention: computes the attention within each text.
        pooling: how a text's hidden states become its vector.
    """

    def __init__(self, encoder: Encoder, attention: Attention, pooling: Pooling) -> None:
        super().__init__(attention)
        self.encoder = encoder
        self.pooling = pooling

    def pack(self, sequences: Sequence[Tokens]) -> list[Numbers]:
        packed = pack(sequences)
        return [*self.encoder.rows(packed), offsets(packed.lengths), packed.lengths]

    def forward(self, inputs: Sequence[Tensor], lengths: Numbers) -> Tensor:
        ids, positions, segments, begins, device_lengths = inputs
        texts = Bounds(begins, lengths)
        states = self.encoder.embed(ids, positions, segments)
        for layer in self.encoder.stack:
            query, key, value = layer.apart(layer.projections(states), 3)
            states = layer.finish(states, self.attention(query, key, value, texts, texts).flatten(1))
        return self._vectors(states, begins, device_lengths)

    def _vectors(self, states: Tensor, begins: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors of texts, of norm 1, fp32 ``(texts, hidden)``."""
        if self.pooling == "cls":
            return functional.normalize(states.index_select(0, begins[:-1]).float(), dim=-1)
        means = torch.segment_reduce(states.float(), "mean", lengths=lengths.long(), unsafe=True)
        return functional.normalize(means, dim=-1)
