"""A joined model's scores without the documents' keys and values: several times as fast as the reference.

The key projection is applied to the query's rows, the value projection to the weighted sums of the documents' rows, as
in the join graph (`osrerank.export.joined_graph`). Tested against `osrerank.scoring.networks.joined`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from osrerank.scoring.card import BLOCKED, Joining
from osrerank.scoring.networks.cross_bias import Layer
from osrerank.scoring.networks.joined import JoinedEncoder, TextStates


def joined_scores(
    encoder: JoinedEncoder, queries: TextStates, documents: TextStates, joining: Joining, biases: Sequence[float]
) -> Tensor:
    """Return the raw scores of documents with each of some biases ``(biases, n)``, as `JoinedEncoder.scores` does.

    The plain cosine has no share in them, whatever the joining says.

    Args:
        encoder: of the bi-encoder.
        queries: one for all documents, or one for each.
        documents: of n texts.
        joining: layers, rows and pooling.
        biases: g, in place of the joining's.
    """
    count = len(documents.vectors)
    if joining.layers == 0:
        return (documents.vectors * queries.vectors).sum(dim=1).expand(len(biases), -1)
    moving = 1 if joining.rows == "cls" else queries.layers[0].shape[1]
    added = torch.tensor(biases, device=documents.vectors.device)[:, None, None, None]
    added = added + documents.log_pieces[:, None, None, None, :]
    own_added = queries.log_pieces[:, None, None, None, :]
    states = queries.layers[-joining.layers][:, None, :moving]  # (1 or n, 1, moving, hidden), later (n, biases, ...)
    for back in range(joining.layers, 0, -1):
        layer, seen = encoder.looking[-back], documents.layers[-back]
        fixed = queries.layers[-back][:, None, moving:]
        fixed = fixed.expand(len(states), states.shape[1], -1, -1)
        looking = states[:, :, :1] if back == 1 and joining.pooling == "cls" else states
        context = _context(layer, looking, torch.cat((states, fixed), dim=2), own_added, seen, added)
        attended = layer.attended_norm(looking + layer.attended(context))
        states = layer.norm(layer.fed_forward(attended))
    pooled = states[:, :, 0] if joining.pooling == "cls" else _mean(states, queries.log_pieces)
    vectors = functional.normalize(pooled, dim=-1).expand(count, len(biases), -1)
    return torch.einsum("nbd,nd->bn", vectors, documents.vectors)


def _mean(states: Tensor, log_pieces: Tensor) -> Tensor:
    """Return the mean ``(n, biases, hidden)`` of states ``(n, biases, tokens, hidden)`` that are not padding."""
    is_token = (log_pieces > BLOCKED / 2).to(states.dtype)[:, None, :, None]
    return (states * is_token).sum(dim=2) / is_token.sum(dim=2)


def _context(layer: Layer, looking: Tensor, own: Tensor, own_added: Tensor, seen: Tensor, added: Tensor) -> Tensor:
    """Return what rows attend to, heads side by side ``(n, biases, rows, hidden)``.

    Args:
        layer: the layer.
        looking: ``(n, biases, rows, hidden)``; 1 for n and biases where they are all the same.
        own: all rows of the query ``(n, biases, tokens, hidden)``, likewise.
        own_added: to the logits of the query's rows ``(n, 1, 1, 1, tokens)``, likewise.
        seen: the documents' rows ``(n, columns, hidden)``.
        added: to the logits of the documents' rows ``(n, biases, 1, 1, columns)``.
    """
    hidden, heads, width = seen.shape[2], layer.heads, layer.width
    count, biases, columns = added.shape[0], added.shape[1], seen.shape[1]
    weights, offsets = layer.projections.weight.chunk(3), layer.projections.bias.chunk(3)
    asked, key, value = (
        functional.linear(rows, weight, offset).view(*rows.shape[:3], heads, width)
        for rows, weight, offset in zip((looking, own, own), weights, offsets, strict=True)
    )
    asked = asked * width**-0.5
    key_matrix, value_matrix = (weight.view(heads, width, hidden) for weight in weights[1:])
    rows = asked.shape[2]
    own_logits = torch.einsum("nbrhw,nbthw->nbrht", asked, key) + own_added
    own_logits = own_logits.expand(count, biases, -1, -1, -1)
    folded = torch.einsum("nbrhw,hwd->nbrhd", asked, key_matrix).flatten(1, 3)  # (n, biases * rows * heads, hidden)
    logits = (folded @ seen.transpose(1, 2)).view(count, -1, rows, heads, columns)
    logits = logits + torch.einsum("nbrhw,hw->nbrh", asked, offsets[1].view(heads, width)).unsqueeze(4) + added
    attention = torch.cat((own_logits, logits), dim=4).softmax(dim=4)
    tokens = own.shape[2]
    sums = (attention[..., tokens:].flatten(1, 3) @ seen).view(count, biases, rows, heads, hidden)
    context = torch.einsum("nbrhd,hwd->nbrhw", sums, value_matrix)
    context = context + attention[..., tokens:].sum(dim=4, keepdim=True) * offsets[2].view(heads, width)
    context = context + torch.einsum(
        "nbrht,nbthw->nbrhw", attention[..., :tokens], value.expand(count, biases, -1, -1, -1)
    )
    return context.flatten(3)
