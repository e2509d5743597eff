"""A bi-encoder's weights read as one sequence, with a bias on the attention between query and document.

The sequence is ``[CLS] q [SEP] [CLS] d [SEP]``; position ids restart at 0 with the document and every token type
embedding is row 0, as the bi-encoder was trained. A bias g is added to each attention logit between the two segments,
0 within a segment; "closed" means that the segment does not see the other one. The raw score is t * cos(mean of the
query's states, mean of the document's states). With both sides closed this is the bi-encoder itself; opening the
query's side lets the query's states depend on the document. Relatives: sparse and asymmetric attention in cross-
encoders (Schlatt et al. 2024, arXiv 2312.17649); PreTTR (MacAvaney et al. 2020, arXiv 2004.14255).

A duo model reads ``[CLS] q [SEP] [CLS] d_i [SEP] [CLS] d_j [SEP]``, segments 0, 1 and 2, positions restarting in each.
Query and documents see each other by the same biases as above, and one document sees the other by a third. The raw
score t * (cos(q, d_i) - cos(q, d_j)) is the logit that d_i is the more relevant one. Both documents are read alike, so
exchanging them changes its sign and nothing else, up to rounding.

With a pool factor r a document of n pieces goes through the layers as ceil(n / r) states: after the embeddings, each
run of neighbours that are most alike becomes its mean. The layers do not know how long a run was. `Pool` is the
reference implementation; the packed network (`packed_bi_encoders.PackedCrossBias`) and the graph
(`osrerank.export.graph`) are tested against it. Token merging by likeness: Bolya et al. 2023 (arXiv 2210.09461);
pooling of a retriever's document states by a factor: Clavié, Chaffin, Adams 2024 (arXiv 2409.14683); pooled
neighbours: Dai et al. 2020 (Funnel-Transformer, arXiv 2006.03236).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.card import BEYOND, BLOCKED, SEGMENTS, SLACK, CrossBias, Kind
from osrerank.scoring.networks.bert_weights import encoder_weights, plain_names


class PaddedEncoder(nn.Module):
    """A BERT encoder's tables and layers, for padded batches.

    Args:
        config: ``config.json``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.word = nn.Embedding(config["vocab_size"], hidden)
        self.position = nn.Embedding(config["max_position_embeddings"], hidden)
        self.segment = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps=config["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def load_bert(self, weights: Mapping[str, Tensor]) -> Self:
        """Take a ``BertModel``'s weights, and go into evaluation mode.

        Raises:
            KeyError: a weight is missing.
        """
        self.load_state_dict(encoder_weights(plain_names(weights), len(self.layers)))
        return self.eval()


class CrossBiasEncoder(PaddedEncoder):
    """A BERT encoder that scores documents, or compares two, in the ``cross-bias`` layout.

    Args:
        config: the bi-encoder's ``config.json``.
        bias: the attention biases and the temperature.
        kind: ``mono`` scores one document, ``duo`` compares two.
    """

    def __init__(self, config: Mapping[str, Any], bias: CrossBias, *, kind: Kind = "mono") -> None:
        super().__init__(config)
        self.bias = bias
        self.segments = SEGMENTS[kind]
        self.pool = Pool(bias.pool_factor, self.segments)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return raw scores ``(n, 1)``, within plus and minus the temperature, or twice as much for duo.

        Args:
            input_ids: int64 ``(n, tokens)``.
            attention_mask: int64 ``(n, tokens)``, 0 on padding.
            token_type_ids: int64 ``(n, tokens)``, 0 on the query's segment, 1 on the document's, for duo 2 on the
                second document's; on padding as on the last token.
        """
        pooled = self.pool(self.embed(input_ids, token_type_ids), token_type_ids, attention_mask)
        states, mask = pooled.states, pooled.attention_mask
        attention_bias = self.attention_bias(pooled.token_type_ids, mask == 1)
        for layer in self.layers:
            states = layer(states, attention_bias)
        segments = (mask * (pooled.token_type_ids == segment) for segment in range(self.segments))
        query, *documents = (mean(states, mask) for mask in segments)
        return raw_scores(self.bias, query, *documents)

    def embed(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the first states ``(n, tokens, hidden)``; positions start at 0 again with each document."""
        positions = torch.ones_like(input_ids).cumsum(dim=1) - 1
        for segment in range(1, self.segments):
            before = (token_type_ids == segment - 1).sum(dim=1, keepdim=True)
            positions = positions - before * (token_type_ids >= segment)
        states: Tensor = self.norm(self.word(input_ids) + self.position(positions) + self.segment.weight[0])
        return states

    def attention_bias(self, token_type_ids: Tensor, is_token: Tensor) -> Tensor:
        """Return the biases of the attention logits ``(n, 1, tokens, tokens)``: rows look at columns."""
        query, document, other = self.bias.amounts()
        rows = (token_type_ids > 0).unsqueeze(2).float()
        columns = (token_type_ids > 0).unsqueeze(1).float()
        between = query * (1 - rows) * columns + document * rows * (1 - columns)
        if self.segments == SEGMENTS["duo"]:
            differ = token_type_ids.unsqueeze(2) != token_type_ids.unsqueeze(1)
            between = between + other * rows * columns * differ
        return (between + BLOCKED * (~is_token).unsqueeze(1)).unsqueeze(1)


class Pooled(NamedTuple):
    """The input of the layers.

    Attributes:
        states: ``(n, rows, hidden)``.
        token_type_ids: int64 ``(n, rows)``; on padding it means nothing.
        attention_mask: int64 ``(n, rows)``.
        shares: of each token in each row ``(n, rows, tokens)``, 0 on padding; None where every token is a row.
    """

    states: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor
    shares: Tensor | None


class Pool(nn.Module):
    """Gives similar neighbours in a document one state: the reference implementation. It has no weights.

    Args:
        factor: pieces of a document for each of its states, on average.
        segments: of a sequence: the query, which is not pooled, and the documents.
    """

    def __init__(self, factor: float, segments: int) -> None:
        super().__init__()
        self.factor = factor
        self.segments = segments

    def forward(self, states: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Pooled:
        """Return the pooled states; arguments as `CrossBiasEncoder.forward` has them, states ``(n, tokens, hidden)``.

        A document of m pieces has ceil(m / factor) runs. A new one begins at the pieces whose states have the lowest
        cosine with the state before; of equal ones at the first. Cosines and means are computed in fp32.
        """
        if self.factor == 1:
            return Pooled(states, token_type_ids, attention_mask, None)
        is_token = attention_mask == 1
        begins = is_token & (token_type_ids == 0)
        like = functional.pad(likeness(states), (1, 0))
        for segment in range(1, self.segments):
            inside = is_token & (token_type_ids == segment)
            count = pooled_length(inside.sum(dim=1), self.factor)
            begins = begins | (inside & (_place(like, inside) < count.unsqueeze(1)))
        run = begins.long().cumsum(dim=1) - 1
        most: Any = begins.sum(dim=1).max()  # stays a tensor, so that a traced graph computes it
        numbers = torch.arange(most, device=states.device).view(1, -1, 1)
        members = ((run.unsqueeze(1) == numbers) & is_token.unsqueeze(1)).float()
        sizes = members.sum(dim=2, keepdim=True)
        shares = members / sizes.clamp(min=1)
        segment_of = (members * token_type_ids.unsqueeze(1)).amax(dim=2).long()
        return Pooled(shared(shares, states), segment_of, (sizes.squeeze(2) > 0).long(), shares)


def shared(shares: Tensor | None, states: Tensor) -> Tensor:
    """Return states ``(n, tokens, hidden)`` in the rows of `Pooled.shares`, computed in fp32."""
    if shares is None:
        return states
    with torch.autocast(states.device.type, enabled=False):
        return (shares @ states.float()).to(states.dtype)


def likeness(states: Tensor) -> Tensor:
    """Return the cosine of each state with the one before it, fp32 ``(..., tokens - 1)``.

    Args:
        states: ``(..., tokens, hidden)``.
    """
    normed = functional.normalize(states.float(), dim=-1)
    return (normed[..., 1:, :] * normed[..., :-1, :]).sum(dim=-1)


def pooled_length(pieces: Tensor, factor: float) -> Tensor:
    """Return how many states documents of these numbers of pieces get, int64, as `osrerank.scoring.card.states_of`."""
    return torch.ceil(pieces / factor - SLACK).long().clamp(min=1)


def _place(like: Tensor, inside: Tensor) -> Tensor:
    """Return each piece's place in its segment, the lowest cosine first; the segment's first piece has place 0.

    It compares all with all, because a traced graph has no stable sort.

    Args:
        like: cosine with the piece before ``(n, tokens)``.
        inside: which pieces are of the segment ``(n, tokens)``.
    """
    is_first = inside & (inside.long().cumsum(dim=1) == 1)
    key = like.masked_fill(~inside, BEYOND).masked_fill(is_first, -BEYOND)
    before, after = key.unsqueeze(1), key.unsqueeze(2)
    tokens = torch.arange(key.shape[1], device=key.device)
    is_earlier = tokens.unsqueeze(0) < tokens.unsqueeze(1)
    return ((before < after) | (before == after) & is_earlier).sum(dim=2)


class Layer(nn.Module):
    """One BERT layer; query, key and value projections are one matrix."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.heads = config["num_attention_heads"]
        self.width = hidden // self.heads
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.attended = nn.Linear(hidden, hidden)
        self.attended_norm = nn.LayerNorm(hidden, eps=config["layer_norm_eps"])
        self.widen = nn.Linear(hidden, inner)
        self.narrow = nn.Linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config["layer_norm_eps"])

    def forward(self, states: Tensor, attention_bias: Tensor) -> Tensor:
        """Return the next states ``(n, tokens, hidden)``."""
        states = self.attended_norm(states + self.attended(self.context(states, attention_bias)))
        normed: Tensor = self.norm(self.fed_forward(states))
        return normed

    def fed_forward(self, states: Tensor) -> Tensor:
        """Return the sum after the two feed-forward products, before the last norm ``(n, tokens, hidden)``."""
        summed: Tensor = states + self.narrow(functional.gelu(self.widen(states)))
        return summed

    def context(self, states: Tensor, attention_bias: Tensor) -> Tensor:
        """Return the values that each token attends to, heads side by side ``(n, tokens, hidden)``."""
        rows, tokens, hidden = states.shape
        projected = self.projections(states).view(rows, tokens, 3, self.heads, self.width)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)  # each (n, heads, tokens, width)
        logits = query @ key.transpose(2, 3) * self.width**-0.5 + attention_bias
        context: Tensor = (logits.softmax(dim=3) @ value).transpose(1, 2).reshape(rows, tokens, hidden)
        return context


def raw_scores(bias: CrossBias, query: Tensor, *documents: Tensor) -> Tensor:
    """Return raw scores ``(n, 1)`` of a document, or of the first against the second, of means ``(n, hidden)``."""
    first, *second = (functional.cosine_similarity(query, document) for document in documents)
    return bias.temperature * (first - second[0] if second else first).unsqueeze(1)


def mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean ``(n, hidden)`` of the states where the mask ``(n, tokens)`` is 1."""
    weights = mask.unsqueeze(2).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def from_bert(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], bias: CrossBias, *, kind: Kind = "mono"
) -> CrossBiasEncoder:
    """Return the encoder with a ``BertModel``'s weights, in evaluation mode.

    Raises:
        KeyError: a weight is missing.
    """
    return CrossBiasEncoder(config, bias, kind=kind).load_bert(weights)
