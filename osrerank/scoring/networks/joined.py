"""A bi-encoder whose query looks at the document in its last layers: the layout ``joined``.

Query and document go through the layers apart, each as ``[CLS] text [SEP]`` with positions from 0, as the bi-encoder
was trained. In the last m layers, rows of the query also attend to the document's rows of the same layer, with a bias g
on those logits, in one softmax with the query's own rows. The document never sees the query, so its states are computed
once, whatever the query. The raw score is the cosine of the query's vector after that and the document's, mixed with
that of the query's vector without the document (`osrerank.scoring.card.Joining`).

A duo model's query looks at two documents at once, with a bias that is less by log 2 on each. Its raw score is the
cosine with the first document's vector less that with the second's: exchanging the documents changes its sign.

A document's row may stand for n neighbouring pieces that were most alike, of which it is the mean; log n is then added
to its logits, so that it weighs as much as they did. Relatives: PreTTR (MacAvaney et al. 2020, arXiv 2004.14255), late
interaction (Khattab, Zaharia 2020, arXiv 2004.12832), token merging with proportional attention (Bolya et al. 2023,
arXiv 2210.09461).

This is the reference implementation, on padded batches in PyTorch. The graphs (`osrerank.export.joined_graph`) and the
packed network (`packed_bi_encoders.PackedJoined`) are tested against it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.card import BLOCKED, Joining, Pooling
from osrerank.scoring.networks.bert_weights import (
    OWN,
    bert_layer_names,
    bert_names,
    encoder_weights,
    layer_weights,
    plain_names,
)
from osrerank.scoring.networks.cross_bias import Layer, PaddedEncoder, Pool, mean, shared


@dataclass(frozen=True, slots=True)
class TextStates:
    """Texts as they are alone. One query may stand beside n documents: then its n is 1.

    Attributes:
        layers: the states that enter each of the model's last layers, each ``(n, rows, hidden)``.
        log_pieces: log of the pieces in each row ``(n, rows)``; `BLOCKED` where there is none.
        vectors: pooled, of norm 1 ``(n, hidden)``.
    """

    layers: tuple[Tensor, ...]
    log_pieces: Tensor
    vectors: Tensor

    @classmethod
    def of_graph(cls, encoded: Mapping[str, npt.NDArray[np.float32]], tokens: int) -> Self:
        """Return the states of one text of so many tokens from what the encoder graph gives.

        Args:
            encoded: ``vector`` and ``states.i``, see `osrerank.export.joined_graph.build_encoder`.
            tokens: of the text, specials among them.
        """
        layers = tuple(torch.from_numpy(encoded[name]) for name in sorted(encoded) if name.startswith("states."))
        return cls(layers, torch.zeros(1, tokens), torch.from_numpy(encoded["vector"]))


@dataclass(frozen=True, slots=True)
class DocumentKeys:
    """Documents' keys and values in the last layers, which depend on no query.

    Attributes:
        keys, values: of each of the last layers, each ``(n, heads, rows, width)``.
        log_pieces, vectors: as `TextStates` has them.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    log_pieces: Tensor
    vectors: Tensor


class JoinedEncoder(PaddedEncoder):
    """A BERT bi-encoder that queries and documents share.

    Args:
        config: the bi-encoder's ``config.json``.
        joining: how the query looks at the document.

    Raises:
        ValueError: more layers are to be joined than the model has.
    """

    def __init__(self, config: Mapping[str, Any], joining: Joining) -> None:
        super().__init__(config)
        if joining.layers > len(self.layers):
            raise ValueError(f"joining: layers is {joining.layers}; the model has {len(self.layers)}")
        self.joining = joining
        own = joining.layers if joining.own_weights else 0
        self.own = nn.ModuleList(Layer(config) for _ in range(own))

    def load_bert(self, weights: Mapping[str, Tensor]) -> Self:
        """Take a ``BertModel``'s weights, and those of the joined layers' own.

        Raises:
            KeyError: a weight is missing.
        """
        plain = plain_names(weights)
        state = encoder_weights(plain, len(self.layers))
        for index in range(len(self.own)):
            state |= layer_weights(plain, f"{OWN}.{index}", f"own.{index}")
        self.load_state_dict(state)
        return self.eval()

    def bert_weights(self) -> dict[str, Tensor]:
        """Return all weights under the names that `load_bert` takes."""
        own = dict(self.named_parameters())
        named = bert_names(own, len(self.layers))
        for index in range(len(self.own)):
            named |= bert_layer_names(own, f"own.{index}", f"{OWN}.{index}")
        return named

    @property
    def stack(self) -> tuple[Layer, ...]:
        """The layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, Layer))

    @property
    def looking(self) -> tuple[Layer, ...]:
        """The layers that the query's rows go through beside a document, first to last."""
        own = tuple(layer for layer in self.own if isinstance(layer, Layer))
        return (*self.stack[: len(self.layers) - len(own)], *own)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return raw scores ``(n, 1)``, from -1 to 1, or of two documents from -2 to 2.

        Args:
            input_ids: int64 ``(n, tokens)``: the query's tokens, then the document's, for duo the second document's.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
            token_type_ids: int64 ``(n, tokens)``, 0 on the query's tokens, 1 on the document's, 2 on the second's; on
                padding as on the last token.
        """
        inside = [(token_type_ids == part) & (attention_mask == 1) for part in range(3)]
        parts = [self.encode(*_apart(input_ids, part), self.joining.layers) for part in inside if part.any()]
        query, first, *second = parts
        documents = self.project(first)
        if second:
            documents = beside(documents, self.project(second[0]))
        return self.scores(query, documents).unsqueeze(1)

    def encode(self, input_ids: Tensor, attention_mask: Tensor, last: int) -> TextStates:
        """Return texts' states, a row for each piece.

        Args:
            input_ids: int64 ``(n, tokens)``.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
            last: as many of the last layers can be joined.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.norm(self.word(input_ids) + self.position(positions) + self.segment.weight[0])
        padding = BLOCKED * (attention_mask == 0)
        kept = []
        for number, layer in enumerate(self.stack):
            if number >= len(self.layers) - last:
                kept.append(states)
            states = layer(states, padding[:, None, None, :])
        return TextStates(tuple(kept), padding, _pooled(states, attention_mask, self.joining.pooling))

    def project(self, documents: TextStates) -> DocumentKeys:
        """Return the documents' keys and values."""
        layers = self.looking[len(self.layers) - len(documents.layers) :]
        both = [_project(layer, states, slice(1, 3)) for layer, states in zip(layers, documents.layers, strict=True)]
        keys, values = tuple(key for key, _ in both), tuple(value for _, value in both)
        return DocumentKeys(keys, values, documents.log_pieces, documents.vectors)

    def scores(self, queries: TextStates, documents: DocumentKeys, joining: Joining | None = None) -> Tensor:
        """Return the raw scores ``(n,)``.

        Args:
            queries: one for all documents, or one for each.
            documents: n texts, or pairs of them (`beside`).
            joining: another than the model's, with the same pooling.

        Raises:
            ValueError: the states are of fewer layers than are joined.
        """
        joining = joining or self.joining
        plain = (documents.vectors * queries.vectors).sum(dim=1)
        if joining.layers == 0 or joining.cosine_share == 1:
            return plain
        joined = (self.join(queries, documents, joining) * documents.vectors).sum(dim=1)
        return joined + joining.cosine_share * (plain - joined)

    def join(self, queries: TextStates, documents: DocumentKeys, joining: Joining) -> Tensor:
        """Return the query's vector beside each document, of norm 1 ``(n, hidden)``.

        Raises:
            ValueError: as `scores`.
        """
        if not 1 <= joining.layers <= len(documents.keys):
            reason = f"{joining.layers} layers are to be joined, and the states are those of {len(documents.keys)}"
            raise ValueError(reason)
        moving = 1 if joining.rows == "cls" else queries.layers[0].shape[1]
        bias = (joining.bias + documents.log_pieces)[:, None, None, :]
        own_bias = queries.log_pieces[:, None, None, :]
        states = queries.layers[-joining.layers][:, :moving]
        for back in range(joining.layers, 0, -1):
            layer = self.looking[-back]
            own = (states, queries.layers[-back][:, moving:])
            looking = states[:, :1] if back == 1 and joining.pooling == "cls" else states
            context = _context(layer, looking, own, own_bias, documents.keys[-back], documents.values[-back], bias)
            attended = layer.attended_norm(looking + layer.attended(context))
            states = layer.norm(layer.fed_forward(attended))
        return _pooled(states, (queries.log_pieces > BLOCKED / 2).long(), joining.pooling)


def beside(first: DocumentKeys, second: DocumentKeys) -> DocumentKeys:
    """Return pairs of documents as a query looks at them: all rows of both, and the difference of their vectors."""
    both = zip(first.keys + first.values, second.keys + second.values, strict=True)
    rows = tuple(torch.cat(pair, dim=2) for pair in both)
    layers = len(first.keys)
    log_pieces = torch.cat((first.log_pieces, second.log_pieces), dim=1)
    return DocumentKeys(rows[:layers], rows[layers:], log_pieces, first.vectors - second.vectors)


def merged(texts: TextStates, factor: float) -> TextStates:
    """Return texts' states with similar neighbours in one row.

    Args:
        texts: with a row for each piece.
        factor: pieces for each row, on average: a text of t pieces has ceil(t / factor) rows, and neighbours share one
            where the input of the first of the last layers is most alike.
    """
    if factor == 1 or not texts.layers:
        return texts
    is_piece = (texts.log_pieces > BLOCKED / 2).long()
    pool = Pool(factor, 2)(texts.layers[0], is_piece, is_piece)  # all pieces are of one segment, 1
    assert pool.shares is not None
    pieces = (pool.shares > 0).sum(dim=2)
    log_pieces = pieces.clamp(min=1).float().log() + BLOCKED * (pieces == 0)
    return TextStates(tuple(shared(pool.shares, one) for one in texts.layers), log_pieces, texts.vectors)


def _context(
    layer: Layer,
    looking: Tensor,
    own: Sequence[Tensor],
    own_bias: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
) -> Tensor:
    """Return what rows attend to, heads side by side ``(n, looking, hidden)``: the query's rows and the document's.

    Args:
        layer: the layer.
        looking: rows ``(n, looking, hidden)``; 1 for n where they are the same beside each document.
        own: all rows of the query, likewise: those that depend on the document, and the others.
        own_bias: of the query's logits ``(n, 1, 1, tokens)``, likewise.
        keys: of the document ``(n, heads, rows, width)``.
        values: likewise.
        bias: of the document's logits ``(n, 1, 1, rows)``.
    """
    count, scale = len(keys), layer.width**-0.5
    (asked,) = _project(layer, looking, slice(0, 1))
    parts = [_project(layer, rows, slice(1, 3)) for rows in own if rows.shape[1]]
    own_keys = torch.cat([key.expand(count, -1, -1, -1) for key, _ in parts], dim=2)
    own_values = torch.cat([value.expand(count, -1, -1, -1) for _, value in parts], dim=2)
    own_logits = asked @ own_keys.transpose(2, 3) * scale + own_bias
    logits = torch.cat((own_logits, asked @ keys.transpose(2, 3) * scale + bias), dim=3)
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


def _pooled(states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Return vectors of norm 1 ``(n, hidden)``."""
    return functional.normalize(states[:, 0] if pooling == "cls" else mean(states, attention_mask), dim=-1)


def _apart(input_ids: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens of one part of each sequence, moved to the left, and their mask ``(n, tokens)``."""
    lengths = inside.sum(dim=1)
    order = (~inside).long().argsort(dim=1, stable=True)[:, : int(lengths.max())]
    mask = torch.arange(order.shape[1], device=input_ids.device) < lengths.unsqueeze(1)
    return input_ids.gather(1, order) * mask, mask.long()


def joined_from_bert(weights: Mapping[str, Tensor], config: Mapping[str, Any], joining: Joining) -> JoinedEncoder:
    """Return the encoder with a ``BertModel``'s weights, in evaluation mode.

    Raises:
        KeyError: a weight is missing.
        ValueError: more layers are to be joined than the model has.
    """
    return JoinedEncoder(config, joining).load_bert(weights)
