"""Wrap networks of the library transformers in modules that take the fields of a `PaddedBatch` as inputs."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from osrerank.scoring.backends.networks.heads import HeadNetwork


class Classifier(nn.Module):
    """A transformers model with a classification head, which computes logits ``(n, labels)``."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        self.has_segments = getattr(network.config, "type_vocab_size", 0) > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the logits. Only networks with segments take ``token_type_ids``."""
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        logits: Tensor = self.network(input_ids=input_ids, attention_mask=attention_mask, **segments).logits
        return logits


class EmbeddingTable(nn.Module):
    """A table with a vector for each token id, ``(ids, dimensions)``, which is used like a transformers encoder."""

    def __init__(self, vectors: Tensor, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vectors.shape[0], vectors.shape[1], _weight=vectors)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:  # noqa: ARG002 - encoders take a mask
        """Return the tokens' vectors as ``last_hidden_state``, as encoders do."""
        return SimpleNamespace(last_hidden_state=self.embedding(input_ids))


class ModularClassifier(nn.Module):
    """A transformers encoder or an `EmbeddingTable`, and a head that computes logits or vectors ``(n, size)``."""

    def __init__(self, network: Any, head: HeadNetwork) -> None:
        super().__init__()
        self.network, self.config = network, network.config
        self.head = head
        self.has_segments = getattr(network.config, "type_vocab_size", 0) > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        states = self.network(input_ids=input_ids, attention_mask=attention_mask, **segments).last_hidden_state
        outputs: Tensor = self.head(self.head.pool_padded(states, attention_mask))
        return outputs
