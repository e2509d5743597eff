"""ModernBERT's forward pass without padding.

Warner et al. 2024 (arXiv 2412.13663): rotary positions (Su et al. 2021, arXiv 2104.09864), attention to the whole
sequence in every third layer and within a window in the others, gated GELU, norms before each part. As in `bert`, only
attention mixes rows, and a head that reads [CLS] needs no other row of a last layer that looks at all.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.backends.networks.attention import Attention, Bounds
from osrerank.scoring.backends.networks.bert import Attend, check_rows
from osrerank.scoring.backends.networks.packing import Numbers, Packed
from osrerank.scoring.modular.modern_bert import EMBEDDINGS, LAYER, PREFIX, ModernBertShape

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of each token's angles, each ``(tokens, 1, width / 2)``."""


class ModernBertLayer(nn.Module):
    """One layer; query, key and value projections are one matrix, and so are both halves of the gated one.

    Args:
        shape: the encoder's.
        index: among its layers, from 0.
    """

    def __init__(self, shape: ModernBertShape, index: int) -> None:
        super().__init__()
        hidden, norm = shape.hidden, partial(nn.LayerNorm, shape.hidden, eps=shape.epsilon, bias=shape.has_norm_bias)
        self.heads = shape.heads
        self.window = shape.windows[index]
        self.theta = shape.thetas[index]
        self.attention_norm = norm() if index else nn.Identity()  # the first layer's states are normed already
        self.projections = nn.Linear(hidden, 3 * hidden, bias=shape.has_attention_bias)
        self.attended = nn.Linear(hidden, hidden, bias=shape.has_attention_bias)
        self.norm = norm()
        self.widen = nn.Linear(hidden, 2 * shape.inner, bias=shape.has_mlp_bias)
        self.narrow = nn.Linear(shape.inner, hidden, bias=shape.has_mlp_bias)

    def forward(self, states: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Return the next states ``(tokens, hidden)``."""
        query, key, value = self._projected(states)
        context = attend(turned(query, rotation), turned(key, rotation), value)
        return self.finish(states, context.flatten(1))

    def firsts(self, states: Tensor, chosen: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Return the next states of each sequence's first token ``(n, hidden)``, whose query is not turned.

        Args:
            states: ``(tokens, hidden)``.
            chosen: the first tokens, int32 ``(n,)``.
            rotation: the rotation of all tokens.
            attend: takes queries of the first tokens.
        """
        query, key, value = self._projected(states)
        context = attend(query.index_select(0, chosen), turned(key, rotation), value)
        return self.finish(states.index_select(0, chosen), context.flatten(1))

    def finish(self, states: Tensor, context: Tensor) -> Tensor:
        """Return the next states of rows from their own and their context, each ``(rows, hidden)``."""
        states = states + self.attended(context)
        wide, gate = self.widen(self.norm(states)).chunk(2, dim=-1)
        finished: Tensor = states + self.narrow(functional.gelu(wide) * gate)
        return finished

    def _projected(self, states: Tensor) -> tuple[Tensor, ...]:
        projected = self.projections(self.attention_norm(states))
        return tuple(projected.view(len(states), 3, self.heads, -1).unbind(1))


class ModernBertEncoder(nn.Module):
    """Embeddings and layers.

    Args:
        shape: what it looks like.
        most_tokens: that a sequence may have.
    """

    def __init__(self, shape: ModernBertShape, most_tokens: int) -> None:
        super().__init__()
        self._width = shape.width
        self._most_tokens = most_tokens
        self.word = nn.Embedding(shape.vocabulary, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=shape.has_norm_bias)
        self.layers = nn.ModuleList(ModernBertLayer(shape, index) for index in range(len(shape.windows)))
        self.final_norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=shape.has_norm_bias)

    @property
    def stack(self) -> tuple[ModernBertLayer, ...]:
        """The layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, ModernBertLayer))

    def rows(self, packed: Packed) -> list[Numbers]:
        """Return ids and positions, each ``(tokens,)``.

        Raises:
            InferenceError: the model has no embedding for an id, or a sequence is too long.
        """
        check_rows("token", packed.ids, self.word.num_embeddings)
        check_rows("position", packed.positions, self._most_tokens)
        return [packed.ids, packed.positions]

    def states(self, rows: Sequence[Tensor], whole: Bounds, attention: Attention) -> Tensor:
        """As `osrerank.scoring.backends.networks.bert.ClassifierEncoder.states`."""
        normed: Tensor = self.final_norm(self._through(self.stack, rows, whole, attention))
        return normed

    def first_states(self, rows: Sequence[Tensor], whole: Bounds, firsts: Bounds, attention: Attention) -> Tensor:
        """As `osrerank.scoring.backends.networks.bert.ClassifierEncoder.first_states`."""
        *layers, last = self.stack
        chosen = whole.offsets[:-1]
        if last.window is not None:
            return self.states(rows, whole, attention).index_select(0, chosen)
        states = self._through(layers, rows, whole, attention)
        rotation = self._rotation(rows[1], last.theta)
        states = last.firsts(states, chosen, rotation, partial(attention, rows=firsts, columns=whole))
        normed: Tensor = self.final_norm(states)
        return normed

    def _through(
        self, layers: Sequence[ModernBertLayer], rows: Sequence[Tensor], whole: Bounds, attention: Attention
    ) -> Tensor:
        ids, positions = rows
        states: Tensor = self.norm(self.word(ids))
        rotations = {theta: self._rotation(positions, theta) for theta in {layer.theta for layer in layers}}
        for layer in layers:
            attend = partial(attention, rows=whole, columns=whole, window=layer.window)
            states = layer(states, rotations[layer.theta], attend)
        return states

    def _rotation(self, positions: Tensor, theta: float) -> Rotation:
        """Return what turns the tokens at these positions; the angles are computed in fp32."""
        dtype = self.word.weight.dtype
        powers = torch.arange(0, self._width, 2, device=positions.device).float() / self._width
        angles = (positions.float()[:, None] * (1.0 / theta**powers)).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(states: Tensor, rotation: Rotation) -> Tensor:
    """Return queries or keys ``(tokens, heads, width)``, each pair of columns i and i + width / 2 turned."""
    cosines, sines = rotation
    one, other = states.chunk(2, dim=-1)
    return torch.cat([one * cosines - other * sines, other * cosines + one * sines], dim=-1)


def encoder_weights(weights: Mapping[str, Tensor], encoder: ModernBertEncoder) -> dict[str, Tensor]:
    """Return an encoder's weights by our names.

    Args:
        weights: by transformers' names, with or without a classifier's prefix.
        encoder: whose weights they are to be.

    Raises:
        KeyError: a weight is missing.
    """
    plain = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    return {name: plain[their_name(name)].float() for name in encoder.state_dict()}


def their_name(name: str) -> str:
    """Return transformers' name of a weight of ours, without a classifier's prefix."""
    stem, _, part = name.rpartition(".")
    if not stem.startswith("layers."):
        return f"{EMBEDDINGS[stem]}.{part}"
    _, index, own = stem.split(".")
    return f"layers.{index}.{LAYER[own]}.{part}"
