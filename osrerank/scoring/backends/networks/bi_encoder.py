"""A BERT bi-encoder on padded batches in PyTorch, for training and as the reference implementation in tests.

Query and document are encoded separately, each as ``[CLS] text [SEP]`` with positions from 0 and segment 0. The score
is the cosine of their vectors (Reimers, Gurevych 2019, arXiv 1908.10084). Tests compare the exported graph
(`osrerank.export.bi_encoder_graph`) and the packed network (`osrerank.scoring.backends.networks.bert`) with it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.backends.networks.bert import BertLayer
from osrerank.scoring.backends.networks.bert_weights import from_bert_weights, normalise_names, to_bert_weights
from osrerank.scoring.backends.networks.heads import pool_padded
from osrerank.scoring.card import Pooling


class PaddedBiEncoder(nn.Module):
    """A BERT encoder for both queries and documents.

    Args:
        config: content of ``config.json``.
        pooling: how a text's vector is computed from its tokens' last states: the state of [CLS] (``cls``), or the mean
            of the states (``mean``).
    """

    def __init__(self, config: Mapping[str, Any], pooling: Pooling) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.pooling = pooling
        self.word = nn.Embedding(config["vocab_size"], hidden)
        self.position = nn.Embedding(config["max_position_embeddings"], hidden)
        self.segment = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps=config["layer_norm_eps"])
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config["num_hidden_layers"]))

    def load_bert(self, weights: Mapping[str, Tensor]) -> Self:
        """Load a ``BertModel``'s weights, and switch to evaluation mode.

        Raises:
            KeyError: a weight is missing.
        """
        self.load_state_dict(from_bert_weights(normalise_names(weights), len(self.layers)))
        return self.eval()

    def export_bert_weights(self) -> dict[str, Tensor]:
        """Return all weights under the names that `load_bert` expects."""
        return to_bert_weights(dict(self.named_parameters()), len(self.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the cosine of each query and its document ``(n, 1)``.

        Args:
            input_ids: int64 ``(n, tokens)``: the query's tokens, then the document's.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
            token_type_ids: int64 ``(n, tokens)``, 0 for the query's tokens and 1 for the document's.
        """
        is_token = attention_mask == 1
        queries = self.encode(*_extract(input_ids, is_token & (token_type_ids == 0)))
        documents = self.encode(*_extract(input_ids, is_token & (token_type_ids == 1)))
        return (documents * queries).sum(dim=1, keepdim=True)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the vectors of texts ``(n, hidden)``, whose norm is 1.

        Args:
            input_ids: int64 ``(n, tokens)``.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.norm(self.word(input_ids) + self.position(positions) + self.segment.weight[0])
        flat_states = states.flatten(0, 1)
        attend = partial(_attend, is_token=attention_mask == 1)
        for layer in self.layers:
            flat_states = layer(flat_states, attend)
        states = flat_states.view_as(states)
        return functional.normalize(pool_padded(states, attention_mask, self.pooling), dim=-1)


def _attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor) -> Tensor:
    """Return the context ``(n * tokens, heads, width)`` of queries, keys and values of the same shape.

    No token attends to padding, where ``is_token``, bool ``(n, tokens)``, is false.
    """
    query, key, value = (
        states.view(*is_token.shape, *states.shape[1:]).transpose(1, 2) for states in (query, key, value)
    )  # each (n, heads, tokens, width)
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None, :])
    return context.transpose(1, 2).flatten(0, 1)


def _extract(input_ids: Tensor, is_selected: Tensor) -> tuple[Tensor, Tensor]:
    """Move each sequence's selected tokens to its beginning. Returns their ids and their mask, each ``(n, tokens)``.

    The ids ``[7, 8, 9]``, of which the last two are selected, become ``[8, 9, 0]`` with the mask ``[1, 1, 0]``.
    """
    lengths = is_selected.sum(dim=1)
    selected_first = (~is_selected).long().argsort(dim=1, stable=True)
    order = selected_first[:, : int(lengths.max())]
    mask = torch.arange(order.shape[1], device=input_ids.device) < lengths.unsqueeze(1)
    return input_ids.gather(1, order) * mask, mask.long()
