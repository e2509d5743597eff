"""Wrap a bi-encoder for training, as a network that computes logits like all others."""

from torch import Tensor, nn

from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder

TEMPERATURE = 20.0
"""The factor by which cosines are multiplied for a softmax over a list."""


class BiEncoderNetwork(nn.Module):
    """A bi-encoder whose raw scores are logits: its cosines times a temperature.

    Args:
        encoder: the bi-encoder, whose scores are cosines.
    """

    def __init__(self, encoder: PaddedBiEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits ``(n, 1)``; the arguments are those of `PaddedBiEncoder.forward`."""
        scores: Tensor = self.encoder(input_ids, attention_mask, token_type_ids)
        return TEMPERATURE * scores
