"""A joined model's scores without the documents' keys and values: several times as fast as the reference.

The key projection is applied to the query's rows, the value projection to the weighted sums of the documents' rows, as
in the join graph (`osrerank.export.joined_graph`). Tested against `osrerank.scoring.networks.joined`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from osrerank.scoring.card import BLOCKED, Joining
from osrerank.scoring.networks.cross_bias import Layer
from osrerank.scoring.networks.joined import JoinedEncoder, TextStates


@dataclass(frozen=True, slots=True)
class _Rows:
    """Queries' rows in a layer. Each first dimension is n, or 1 for all documents, or that of the queries.

    Attributes:
        looking: those that attend ``(queries, biases, rows, hidden)``; 1 for biases where they are all the same.
        own: keys and values of all rows of the query ``(queries, biases, tokens, 2, heads, width)``, likewise.
        added: to the logits of the query's rows ``(queries, 1, 1, 1, tokens)``.
        places: of each document's query among them ``(n,)``; None where the first dimension is n or 1.
    """

    looking: Tensor
    own: Tensor
    added: Tensor
    places: Tensor | None


def joined_scores(
    encoder: JoinedEncoder,
    queries: TextStates,
    documents: TextStates,
    joining: Joining,
    biases: Sequence[float],
    places: Tensor | None = None,
) -> Tensor:
    """Return the raw scores of documents with each of some biases ``(biases, n)``, as `JoinedEncoder.scores` does.

    The plain cosine has no share in them, whatever the joining says.

    Args:
        encoder: of the bi-encoder.
        queries: one for all documents, or one for each, or those that ``places`` names.
        documents: of n texts.
        joining: layers, rows and pooling.
        biases: g, in place of the joining's.
        places: int64 ``(n,)``, the place of each document's query among the queries. What depends on the query alone is
            then computed once for each.
    """
    count = len(documents.vectors)
    if joining.layers == 0:
        return (documents.vectors * _each(queries.vectors, places)).sum(dim=1).expand(len(biases), -1)
    moving = 1 if joining.rows == "cls" else queries.layers[0].shape[1]
    added = torch.tensor(biases, device=documents.vectors.device)[:, None, None, None]
    added = added + documents.log_pieces[:, None, None, None, :]
    own_added = queries.log_pieces[:, None, None, None, :]
    states, at = queries.layers[-joining.layers][:, None, :moving], places
    for back in range(joining.layers, 0, -1):
        layer, seen = encoder.looking[-back], documents.layers[-back]
        looking = states[:, :, :1] if back == 1 and joining.pooling == "cls" else states
        fixed = _keys_and_values(layer, queries.layers[-back][:, None, moving:])
        if at is not places:  # the states are documents' own by now
            fixed, own_added = _each(fixed, places), _each(queries.log_pieces, places)[:, None, None, None, :]
        fixed = fixed.expand(len(states), states.shape[1], *[-1] * 4)
        own = torch.cat((_keys_and_values(layer, states), fixed), dim=2)
        context = _context(layer, _Rows(looking, own, own_added, at), seen, added)
        attended = layer.attended_norm(_each(looking, at) + layer.attended(context))
        states, at = layer.norm(layer.fed_forward(attended)), None
    pooled = states[:, :, 0] if joining.pooling == "cls" else _mean(states, _each(queries.log_pieces, places))
    vectors = functional.normalize(pooled, dim=-1).expand(count, len(biases), -1)
    return torch.einsum("nbd,nd->bn", vectors, documents.vectors)


def _each(rows: Tensor, places: Tensor | None) -> Tensor:
    """Return each document's rows of the queries' rows; the gradient of an embedding takes less time than others."""
    if places is None:
        return rows
    return functional.embedding(places, rows.flatten(1)).view(len(places), *rows.shape[1:])


def _mean(states: Tensor, log_pieces: Tensor) -> Tensor:
    """Return the mean ``(n, biases, hidden)`` of states ``(n, biases, tokens, hidden)`` that are not padding."""
    is_token = (log_pieces > BLOCKED / 2).to(states.dtype)[:, None, :, None]
    return (states * is_token).sum(dim=2) / is_token.sum(dim=2)


def _keys_and_values(layer: Layer, rows: Tensor) -> Tensor:
    """Return ``(n, biases, rows, 2, heads, width)`` of rows ``(n, biases, rows, hidden)``."""
    hidden = rows.shape[3]
    projected = functional.linear(rows, layer.projections.weight[hidden:], layer.projections.bias[hidden:])
    return projected.view(*rows.shape[:3], 2, layer.heads, layer.width)


def _context(layer: Layer, query: _Rows, seen: Tensor, added: Tensor) -> Tensor:
    """Return what rows attend to, heads side by side ``(n, biases, rows, hidden)``.

    Args:
        layer: the layer.
        query: its rows.
        seen: the documents' rows ``(n, columns, hidden)``.
        added: to the logits of the documents' rows ``(n, biases, 1, 1, columns)``.
    """
    hidden, heads, width = seen.shape[2], layer.heads, layer.width
    count, biases, columns = added.shape[0], added.shape[1], seen.shape[1]
    weights, offsets = layer.projections.weight.chunk(3), layer.projections.bias.chunk(3)
    key_matrix, value_matrix = (weight.view(heads, width, hidden) for weight in weights[1:])
    key_offset, value_offset = (offset.view(heads, width) for offset in offsets[1:])
    rows, tokens = query.looking.shape[2], query.own.shape[2]
    asked = functional.linear(query.looking, weights[0], offsets[0]) * width**-0.5
    asked = asked.view(*asked.shape[:3], heads, width)
    own_logits = torch.einsum("nbrhw,nbthw->nbrht", asked, query.own[:, :, :, 0]) + query.added
    own_logits = _each(own_logits, query.places).expand(count, biases, -1, -1, -1)
    folded = torch.einsum("nbrhw,hwd->nbrhd", asked, key_matrix)
    folded = _each(folded, query.places).flatten(1, 3)  # (n, biases * rows * heads, hidden)
    logits = (folded @ seen.transpose(1, 2)).view(count, -1, rows, heads, columns)
    offset = torch.einsum("nbrhw,hw->nbrh", asked, key_offset).unsqueeze(4)
    logits = logits + _each(offset, query.places) + added
    attention = torch.cat((own_logits, logits), dim=4).softmax(dim=4)
    sums = (attention[..., tokens:].flatten(1, 3) @ seen).view(count, biases, rows, heads, hidden)
    context = torch.einsum("nbrhd,hwd->nbrhw", sums, value_matrix)
    context = context + attention[..., tokens:].sum(dim=4, keepdim=True) * value_offset
    value = _each(query.own[:, :, :, 1], query.places).expand(count, biases, -1, -1, -1)
    return (context + torch.einsum("nbrht,nbthw->nbrhw", attention[..., :tokens], value)).flatten(3)
