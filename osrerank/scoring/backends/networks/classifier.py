"""A network of transformers with the inputs of all our models."""

from typing import Any

from torch import Tensor, nn

from osrerank.scoring.backends.networks.heads import HeadNetwork


class Classifier(nn.Module):
    """Returns a classifier's logits ``(n, labels)``.

    Args:
        network: a transformers model with a classification head.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        self.has_segments = getattr(network.config, "type_vocab_size", 0) > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the logits; models without segments do not get any."""
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        logits: Tensor = self.network(input_ids=input_ids, attention_mask=attention_mask, **segments).logits
        return logits


class ModularClassifier(nn.Module):
    """Returns a modular cross-encoder's logits ``(n, labels)``, or a bi-encoder's vectors ``(n, dimensions)``.

    Args:
        network: a transformers encoder.
        head: what follows it.
    """

    def __init__(self, network: Any, head: HeadNetwork) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        self.head = head
        self.has_segments = getattr(network.config, "type_vocab_size", 0) > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the logits or vectors; models without segments do not get any."""
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        states = self.network(input_ids=input_ids, attention_mask=attention_mask, **segments).last_hidden_state
        logits: Tensor = self.head(self.head.pooled_grid(states, attention_mask))
        return logits
