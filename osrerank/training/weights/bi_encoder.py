"""Wrap a bi-encoder as a network that returns logits, so that rankers of all kinds train alike."""

from torch import Tensor, nn

from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder

COSINE_SCALE = 20.0
"""The factor that turns a cosine into a logit. Without it, a softmax over cosines in [-1, 1] would be almost flat."""


class BiEncoderNetwork(nn.Module):
    """A bi-encoder whose logits are its cosines times `COSINE_SCALE`."""

    def __init__(self, encoder: PaddedBiEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits ``(n, 1)``; see `PaddedBiEncoder.forward` for the arguments."""
        scores: Tensor = self.encoder(input_ids, attention_mask, token_type_ids)
        return COSINE_SCALE * scores
