"""Compute ModernBERT without padding: the tokens of all sequences of a batch are concatenated.

ModernBERT (Warner et al. 2024, arXiv 2412.13663) uses RoPE (Su et al. 2021, arXiv 2104.09864), a gated feed-forward
network with a GELU, and norms before attention and before this network. Every third layer attends to the whole
sequence, and the other layers attend within a window. As in `bert`, only attention combines tokens. If the head needs
only the state of [CLS] and the last layer attends to the whole sequence, that layer computes no other state.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from osrerank.scoring.backends.networks.attention import Attention, Bounds
from osrerank.scoring.backends.networks.bert import Attend, check_ids
from osrerank.scoring.backends.networks.packing import Int32Array, PackedBatch
from osrerank.scoring.modular.modern_bert import CLASSIFIER_PREFIX, EMBEDDINGS, LAYER, ModernBertShape

Rope = tuple[Tensor, Tensor]
"""RoPE: the cosines and sines of each token's angles, each ``(tokens, 1, width / 2)``."""


class ModernBertLayer(nn.Module):
    """A layer. One matrix computes query, key and value, and another both halves of the gated feed-forward network."""

    def __init__(self, shape: ModernBertShape, index: int) -> None:
        super().__init__()
        hidden = shape.hidden
        norm = partial(nn.LayerNorm, hidden, eps=shape.epsilon, bias=shape.has_norm_bias)
        self.heads = shape.heads
        self.window = shape.windows[index]
        self.rope_base = shape.rope_bases[index]
        self.attention_norm = norm() if index else nn.Identity()  # the embeddings are already normed
        self.projections = nn.Linear(hidden, 3 * hidden, bias=shape.has_attention_bias)
        self.attended = nn.Linear(hidden, hidden, bias=shape.has_attention_bias)  # attention's output projection
        self.norm = norm()
        self.widen = nn.Linear(hidden, 2 * shape.inner, bias=shape.has_mlp_bias)
        self.narrow = nn.Linear(shape.inner, hidden, bias=shape.has_mlp_bias)

    def forward(self, states: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Return the next states ``(tokens, hidden)``."""
        query, key, value = self._project(states)
        context = attend(rotate(query, rope), rotate(key, rope), value)
        return self._finish_layer(states, context.flatten(1))

    def forward_first_tokens(self, states: Tensor, indices: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Return the next state of each sequence's first token ``(n, hidden)``.

        The first tokens' queries are not rotated, because RoPE changes nothing at position 0.
        """
        query, key, value = self._project(states)
        context = attend(query.index_select(0, indices), rotate(key, rope), value)
        return self._finish_layer(states.index_select(0, indices), context.flatten(1))

    def _finish_layer(self, states: Tensor, context: Tensor) -> Tensor:
        states = states + self.attended(context)
        wide, gate = self.widen(self.norm(states)).chunk(2, dim=-1)
        finished: Tensor = states + self.narrow(functional.gelu(wide) * gate)
        return finished

    def _project(self, states: Tensor) -> tuple[Tensor, ...]:
        projected = self.projections(self.attention_norm(states))
        return tuple(projected.view(len(states), 3, self.heads, -1).unbind(1))


class ModernBertEncoder(nn.Module):
    """A ModernBERT's embeddings and layers, as a `bert.PackedEncoder`. A sequence has at most ``max_tokens`` tokens."""

    def __init__(self, shape: ModernBertShape, max_tokens: int) -> None:
        super().__init__()
        self._head_width = shape.width
        self._max_tokens = max_tokens
        self.word = nn.Embedding(shape.vocabulary, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=shape.has_norm_bias)
        self.layers = nn.ModuleList(ModernBertLayer(shape, index) for index in range(len(shape.windows)))
        self.final_norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=shape.has_norm_bias)

    @property
    def typed_layers(self) -> tuple[ModernBertLayer, ...]:
        """The layers, first to last. `torch.nn.ModuleList` does not know their type."""
        return tuple(layer for layer in self.layers if isinstance(layer, ModernBertLayer))

    def prepare_ids(self, packed: PackedBatch) -> list[Int32Array]:
        """Check and return the ids of tokens and positions, each ``(tokens,)``.

        Raises:
            InferenceError: the model has no embedding for an id, or a sequence is too long.
        """
        check_ids("token", packed.ids, self.word.num_embeddings)
        check_ids("position", packed.positions, self._max_tokens)
        return [packed.ids, packed.positions]

    def encode(self, ids: Sequence[Tensor], bounds: Bounds, attention: Attention) -> Tensor:
        normed: Tensor = self.final_norm(self._run_layers(self.typed_layers, ids, bounds, attention))
        return normed

    def encode_first(self, ids: Sequence[Tensor], bounds: Bounds, first_bounds: Bounds, attention: Attention) -> Tensor:
        *layers, last = self.typed_layers
        first_indices = bounds.offsets[:-1]
        if last.window is not None:
            return self.encode(ids, bounds, attention).index_select(0, first_indices)
        states = self._run_layers(layers, ids, bounds, attention)
        _token_ids, positions = ids
        rope = self._compute_rope(positions, last.rope_base)
        attend = partial(attention, query_bounds=first_bounds, key_bounds=bounds)
        states = last.forward_first_tokens(states, first_indices, rope, attend)
        normed: Tensor = self.final_norm(states)
        return normed

    def _run_layers(
        self, layers: Sequence[ModernBertLayer], ids: Sequence[Tensor], bounds: Bounds, attention: Attention
    ) -> Tensor:
        """Embed tokens, and return their states after these layers. ``ids`` are the ids of tokens and positions."""
        token_ids, positions = ids
        states: Tensor = self.norm(self.word(token_ids))
        ropes = {base: self._compute_rope(positions, base) for base in {layer.rope_base for layer in layers}}
        for layer in layers:
            attend = partial(attention, query_bounds=bounds, key_bounds=bounds, window=layer.window)
            states = layer(states, ropes[layer.rope_base], attend)
        return states

    def _compute_rope(self, positions: Tensor, base: float) -> Rope:
        """Return the RoPE cosines and sines of tokens at these positions. The angles are computed in fp32."""
        dtype = self.word.weight.dtype
        powers = torch.arange(0, self._head_width, 2, device=positions.device).float() / self._head_width
        angles = (positions.float()[:, None] * (1.0 / base**powers)).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(states: Tensor, rope: Rope) -> Tensor:
    """Rotate queries or keys ``(tokens, heads, width)`` by RoPE.

    Columns i and i + width / 2 are the two coordinates of a point, which is rotated by the i-th angle.
    """
    cosines, sines = rope
    left, right = states.chunk(2, dim=-1)
    return torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)


def from_transformers_weights(weights: Mapping[str, Tensor], encoder: ModernBertEncoder) -> dict[str, Tensor]:
    """Return an encoder's weights under our modules' names, from transformers' names with or without a prefix.

    Raises:
        KeyError: a weight is missing.
    """
    unprefixed = {name.removeprefix(CLASSIFIER_PREFIX): tensor for name, tensor in weights.items()}
    return {name: unprefixed[_to_transformers_name(name)].float() for name in encoder.state_dict()}


def _to_transformers_name(name: str) -> str:
    """Translate our name of a weight to transformers' name: ``layers.0.widen.weight`` to ``layers.0.mlp.Wi.weight``."""
    module, _, parameter = name.rpartition(".")
    if not module.startswith("layers."):
        return f"{EMBEDDINGS[module]}.{parameter}"
    _, index, layer_module = module.split(".")
    return f"layers.{index}.{LAYER[layer_module]}.{parameter}"
