"""A bi-encoder whose query looks at the document in its last layers: the layout ``joined``.

Query and document go through the layers apart, each as ``[CLS] text [SEP]`` with positions from 0, as the bi-encoder
was trained. In the last m layers, rows of the query also attend to the document's rows of the same layer, with a bias g
on those logits, in one softmax with the query's own rows. The document never sees the query, so its states are computed
once, whatever the query. The raw score is the cosine of the query's vector after that and the document's, mixed with
that of the query's vector without the document.

A document's row may stand for n neighbouring pieces that were most alike, of which it is the mean; log n is then added
to its logits, so that it weighs as much as they did. Relatives: PreTTR (MacAvaney et al. 2020, arXiv 2004.14255), late
interaction (Khattab, Zaharia 2020, arXiv 2004.12832), token merging with proportional attention (Bolya et al. 2023,
arXiv 2210.09461).

This is the reference implementation, on padded batches in PyTorch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.card import BLOCKED
from osrerank.scoring.networks.bert_weights import encoder_weights, plain_names
from osrerank.scoring.networks.cross_bias import Layer, Pool, mean, shared

Rows = Literal["cls", "all"]
Pooling = Literal["cls", "mean"]


@dataclass(frozen=True, slots=True)
class Joining:
    """How a query looks at a document.

    Attributes:
        layers: the last m layers are joined; with 0 the model is the bi-encoder.
        bias: g, added to the attention logits of the query's rows on the document's.
        rows: which of the query's rows look: its [CLS] row alone, while the others stay as they are without the
            document, or all.
        cosine_share: share of the bi-encoder's own cosine in the score, from 0 to 1.
    """

    layers: int = 1
    bias: float = -3.0
    rows: Rows = "cls"
    cosine_share: float = 0.0


@dataclass(frozen=True, slots=True)
class QueryStates:
    """A query without a document.

    Attributes:
        layers: the states that enter each of the model's last layers, the first of them first, each
            ``(tokens, hidden)``; last those that leave the last layer.
        vector: pooled, of norm 1 ``(hidden,)``.
    """

    layers: tuple[Tensor, ...]
    vector: Tensor


@dataclass(frozen=True, slots=True)
class DocumentStates:
    """Documents as queries look at them.

    Attributes:
        layers: the states that enter each of the model's last layers, each ``(n, rows, hidden)``.
        log_pieces: log of the pieces in each row ``(n, rows)``; `BLOCKED` where there is none.
        vectors: pooled, of norm 1 ``(n, hidden)``.
    """

    layers: tuple[Tensor, ...]
    log_pieces: Tensor
    vectors: Tensor


@dataclass(frozen=True, slots=True)
class DocumentKeys:
    """Documents' keys and values in the last layers, which depend on no query.

    Attributes:
        keys, values: of each of the last layers, each ``(n, heads, rows, width)``.
        log_pieces, vectors: as `DocumentStates` has them.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    log_pieces: Tensor
    vectors: Tensor


class JoinedEncoder(nn.Module):
    """A BERT bi-encoder that queries and documents share.

    Args:
        config: the bi-encoder's ``config.json``.
        pooling: ``cls``: a text's vector is its [CLS] state; ``mean``: the mean of all its states.
    """

    def __init__(self, config: Mapping[str, Any], pooling: Pooling) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.pooling = pooling
        self.word = nn.Embedding(config["vocab_size"], hidden)
        self.position = nn.Embedding(config["max_position_embeddings"], hidden)
        self.segment = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps=config["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    @property
    def stack(self) -> tuple[Layer, ...]:
        """The layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, Layer))

    def encode(self, input_ids: Tensor, attention_mask: Tensor, last: int) -> tuple[list[Tensor], Tensor]:
        """Return what enters the last layers and what leaves the last one, and the texts' vectors of norm 1.

        Args:
            input_ids: int64 ``(n, tokens)``.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
            last: of how many layers the input is wanted.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.norm(self.word(input_ids) + self.position(positions) + self.segment.weight[0])
        bias = (BLOCKED * (attention_mask == 0))[:, None, None, :]
        kept = []
        for number, layer in enumerate(self.stack):
            if number >= len(self.layers) - last:
                kept.append(states)
            states = layer(states, bias)
        return [*kept, states], self._pooled(states, attention_mask)

    def query(self, input_ids: Tensor, last: int) -> QueryStates:
        """Return a query's states.

        Args:
            input_ids: int64 ``(tokens,)``.
            last: as many of the last layers can be joined.
        """
        states, vectors = self.encode(input_ids.unsqueeze(0), torch.ones_like(input_ids).unsqueeze(0), last)
        return QueryStates(tuple(one[0] for one in states), vectors[0])

    def documents(self, input_ids: Tensor, attention_mask: Tensor, last: int, *, factor: float = 1.0) -> DocumentStates:
        """Return documents' states.

        Args:
            input_ids: int64 ``(n, tokens)``.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
            last: as many of the last layers can be joined.
            factor: pieces of a document for each of its rows, on average; neighbours are merged where the input of the
                first of the last layers is most alike.
        """
        states, vectors = self.encode(input_ids, attention_mask, last)
        return merged(states[:-1], attention_mask, vectors, factor)

    def project(self, documents: DocumentStates) -> DocumentKeys:
        """Return the documents' keys and values."""
        keys, values = [], []
        for layer, states in zip(self.stack[len(self.layers) - len(documents.layers) :], documents.layers, strict=True):
            key, value = _project(layer, states, slice(1, 3))
            keys.append(key)
            values.append(value)
        return DocumentKeys(tuple(keys), tuple(values), documents.log_pieces, documents.vectors)

    def scores(self, query: QueryStates, documents: DocumentKeys, joining: Joining) -> Tensor:
        """Return the raw scores ``(n,)``, from -1 to 1.

        Raises:
            ValueError: the states do not reach as far back as the joined layers, or the mean of all rows is wanted
                where one row looks.
        """
        plain = documents.vectors @ query.vector
        if joining.layers == 0 or joining.cosine_share == 1:
            return plain
        joined = (self.join(query, documents, joining) * documents.vectors).sum(dim=1)
        return joined + joining.cosine_share * (plain - joined)

    def join(self, query: QueryStates, documents: DocumentKeys, joining: Joining) -> Tensor:
        """Return the query's vector beside each document, of norm 1 ``(n, hidden)``.

        Raises:
            ValueError: as `scores`.
        """
        if not 1 <= joining.layers <= len(documents.keys):
            reason = f"{joining.layers} layers are to be joined, and the states are those of {len(documents.keys)}"
            raise ValueError(reason)
        if joining.rows == "cls" and self.pooling == "mean":
            raise ValueError("with mean pooling all rows of the query look at the document, not its [CLS] alone")
        moving = 1 if joining.rows == "cls" else len(query.layers[0])
        bias = (joining.bias + documents.log_pieces)[:, None, None, :]
        states = query.layers[-1 - joining.layers][:moving].unsqueeze(0)  # the same beside each document at first
        for back in range(joining.layers, 0, -1):
            layer = self.stack[-back]
            fixed = query.layers[-1 - back][moving:].unsqueeze(0)
            looking = states[:, :1] if back == 1 and self.pooling == "cls" else states
            context = _context(layer, looking, (states, fixed), documents.keys[-back], documents.values[-back], bias)
            attended = layer.attended_norm(looking + layer.attended(context))
            states = layer.norm(layer.fed_forward(attended))
        return functional.normalize(states[:, 0] if self.pooling == "cls" else states.mean(dim=1), dim=-1)

    def _pooled(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        pooled = states[:, 0] if self.pooling == "cls" else mean(states, attention_mask)
        return functional.normalize(pooled, dim=-1)


def merged(layers: list[Tensor], attention_mask: Tensor, vectors: Tensor, factor: float) -> DocumentStates:
    """Return documents' states with similar neighbours in one row.

    Args:
        layers: the states that enter each of the last layers, each ``(n, tokens, hidden)``.
        attention_mask: int64 ``(n, tokens)``, 0 on padding.
        vectors: ``(n, hidden)``.
        factor: pieces for each row, on average; a document of t pieces has ceil(t / factor) rows.
    """
    if factor == 1 or not layers:
        return DocumentStates(tuple(layers), BLOCKED * (attention_mask == 0), vectors)
    pooled = Pool(factor, 2)(layers[0], attention_mask, attention_mask)  # a document's pieces have segment 1
    assert pooled.shares is not None
    pieces = (pooled.shares > 0).sum(dim=2)
    log_pieces = pieces.clamp(min=1).float().log() + BLOCKED * (pieces == 0)
    return DocumentStates(tuple(shared(pooled.shares, one) for one in layers), log_pieces, vectors)


def _context(
    layer: Layer, looking: Tensor, own: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, bias: Tensor
) -> Tensor:
    """Return what rows attend to, heads side by side ``(n, looking, hidden)``: the query's rows and the document's.

    Args:
        layer: the layer.
        looking: rows ``(n, looking, hidden)``; 1 for n where they are the same beside each document.
        own: all rows of the query, likewise: those that depend on the document, and the others.
        keys: of the document ``(n, heads, rows, width)``.
        values: likewise.
        bias: of the document's logits ``(n, 1, 1, rows)``.
    """
    count, scale = len(keys), layer.width**-0.5
    (asked,) = _project(layer, looking, slice(0, 1))
    parts = [_project(layer, rows, slice(1, 3)) for rows in own if rows.shape[1]]
    own_keys = torch.cat([key.expand(count, -1, -1, -1) for key, _ in parts], dim=2)
    own_values = torch.cat([value.expand(count, -1, -1, -1) for _, value in parts], dim=2)
    logits = torch.cat((asked @ own_keys.transpose(2, 3) * scale, asked @ keys.transpose(2, 3) * scale + bias), dim=3)
    attention, tokens = logits.softmax(dim=3), own_keys.shape[2]
    context: Tensor = attention[..., :tokens] @ own_values + attention[..., tokens:] @ values
    return context.transpose(1, 2).flatten(2)


def _project(layer: Layer, states: Tensor, parts: slice) -> tuple[Tensor, ...]:
    """Return some of queries, keys and values, each ``(n, heads, rows, width)``.

    Args:
        layer: the layer.
        states: ``(n, rows, hidden)``.
        parts: 0 queries, 1 keys, 2 values.
    """
    hidden = states.shape[2]
    chosen = slice(parts.start * hidden, parts.stop * hidden)
    projected = functional.linear(states, layer.projections.weight[chosen], layer.projections.bias[chosen])
    split = projected.view(*states.shape[:2], -1, layer.heads, layer.width).permute(2, 0, 3, 1, 4)
    return tuple(split.unbind(0))


def joined_from_bert(weights: Mapping[str, Tensor], config: Mapping[str, Any], pooling: Pooling) -> JoinedEncoder:
    """Return the encoder with a ``BertModel``'s weights, in evaluation mode.

    Raises:
        KeyError: a weight is missing.
    """
    encoder = JoinedEncoder(config, pooling)
    encoder.load_state_dict(encoder_weights(plain_names(weights), config["num_hidden_layers"]))
    return encoder.eval()
