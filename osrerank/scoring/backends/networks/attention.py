"""Attention within packed sequences, in two implementations that compute the same values.

``VarlenAttention`` is PyTorch's packed flash attention (Dao 2023, arXiv 2307.08691; ``torch.nn.attention.varlen``,
PyTorch 2.10). It needs CUDA and 16-bit numbers. ``PaddedAttention`` pads the sequences for the attention only. It works
everywhere: on the CPU, in fp32, on older GPUs and with older PyTorch.

All states are ``(tokens, heads, width)``.

With a window, each token attends to that many positions to either side, within its own sequence. The cost of both
implementations then grows with the window, not with the sequence: the padded one computes blocks of packed tokens, and
each block attends to itself and to one window on either side.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from osrerank.errors import InferenceError

FLASH_CAPABILITY = (8, 0)
"""The first CUDA compute capability with the flash kernel, that of Ampere."""
FLASH_DTYPES = (torch.float16, torch.bfloat16)
FLASH_WIDTHS = range(8, 257, 8)
"""Head widths that the flash kernel supports."""
WINDOWS_ON_GRID = 4
"""If the longest sequence has at most this many windows, a masked grid is faster than blocks."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of n sequences among packed tokens.

    Attributes:
        offsets: offsets on the device, int32 ``(n + 1,)``: sequence i is ``offsets[i]:offsets[i + 1]``.
        lengths: number of tokens in each sequence ``(n,)``, above 0, in host memory.
    """

    offsets: Tensor
    lengths: npt.NDArray[np.int32]

    @cached_property
    def longest(self) -> int:
        """Number of tokens in the longest sequence."""
        return int(self.lengths.max())

    @cached_property
    def mask(self) -> Tensor | None:
        """Mask of the tokens in the padded grid, bool ``(n, 1, 1, longest)``; None if the grid has no padding."""
        if (self.lengths == self.longest).all():
            return None
        is_token = np.arange(self.longest) < self.lengths[:, None]
        return torch.from_numpy(is_token).to(self.offsets.device)[:, None, None, :]

    @cached_property
    def indices(self) -> Tensor:
        """Index of each token in the flattened padded grid, int64 ``(tokens,)``."""
        is_token = np.arange(self.longest) < self.lengths[:, None]
        return torch.from_numpy(np.flatnonzero(is_token)).to(self.offsets.device)

    @cached_property
    def sequence_numbers(self) -> Tensor:
        """Number of each token's sequence, int64 ``(tokens,)``."""
        return torch.from_numpy(np.repeat(np.arange(len(self.lengths)), self.lengths)).to(self.offsets.device)

    def pad(self, states: Tensor) -> Tensor:
        """Return packed states as a padded grid ``(n, heads, longest, width)``, with zeros on padding."""
        if self.mask is not None:
            grid = states.new_zeros(len(self.lengths) * self.longest, *states.shape[1:])
            states = grid.index_copy_(0, self.indices, states)
        return states.view(len(self.lengths), self.longest, *states.shape[1:]).transpose(1, 2)

    def unpad(self, grid: Tensor) -> Tensor:
        """Return the packed states of a padded grid ``(n, heads, longest, ...)``: the inverse of `pad`."""
        flat = grid.transpose(1, 2).flatten(0, 1)
        return flat if self.mask is None else flat.index_select(0, self.indices)


class Attention(Protocol):
    """An implementation of attention: queries of sequence i attend to keys of sequence i."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def packed(self) -> bool:
        """Whether a batch costs the sum of its lengths; otherwise, it costs its longest sequence times their number."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, queries: Bounds, keys: Bounds, *, window: int | None = None
    ) -> Tensor:
        """Return the context of each query ``(queries, heads, width)``.

        Args:
            query: query states ``(queries, heads, width)``.
            key: key states ``(keys, heads, width)``.
            value: value states ``(keys, heads, width)``.
            queries: bounds of the queries' sequences.
            keys: bounds of the keys' sequences.
            window: how many positions to either side a query attends to; None for all positions. With a window, the
                queries and keys must belong to the same tokens.
        """


class VarlenAttention:
    """PyTorch's packed flash attention.

    Args:
        module: ``torch.nn.attention.varlen``.
    """

    name = "packed"
    packed = True

    def __init__(self, module: Any) -> None:
        self._attend: Callable[..., Any] = module.varlen_attn

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, queries: Bounds, keys: Bounds, *, window: int | None = None
    ) -> Tensor:
        limit = {} if window is None or _covers(window, queries) else {"window_size": (window, window)}
        bounds = (queries.offsets, keys.offsets, queries.longest, keys.longest)
        context: Tensor = self._attend(query, key, value, *bounds, **limit)
        return context


class PaddedAttention:
    """Attention on a padded grid; the rest of the network stays packed."""

    name = "padded"
    packed = False

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, queries: Bounds, keys: Bounds, *, window: int | None = None
    ) -> Tensor:
        mask = keys.mask
        if window is not None and not _covers(window, queries):
            if queries.longest > WINDOWS_ON_GRID * window:
                return _in_blocks(query, key, value, queries, window)
            positions = torch.arange(queries.longest, device=query.device)
            is_near = (positions[:, None] - positions).abs() <= window
            mask = is_near[None, None] if mask is None else mask & is_near
        grid = functional.scaled_dot_product_attention(
            queries.pad(query), keys.pad(key), keys.pad(value), attn_mask=mask
        )
        return queries.unpad(grid)


@dataclass(frozen=True)
class PartialAttention:
    """Attention to some of the keys only.

    Attributes:
        attention: attention to the selected keys.
        indices: indices of the selected keys among the packed tokens, int32.
        selected: bounds of the selected keys' sequences.
    """

    attention: Attention
    indices: Tensor
    selected: Bounds

    @property
    def name(self) -> str:
        return self.attention.name

    @property
    def packed(self) -> bool:
        return self.attention.packed

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, queries: Bounds, keys: Bounds, *, window: int | None = None
    ) -> Tensor:
        """Do what `Attention` does, for sequences that a window covers.

        Raises:
            InferenceError: a sequence is longer than the window covers.
        """
        del keys
        if window is not None and not _covers(window, queries):
            raise InferenceError(
                f"a text has {queries.longest} tokens; with a window of {window}, attention to some of them needs at "
                f"most {window + 1}"
            )
        selected_key, selected_value = key.index_select(0, self.indices), value.index_select(0, self.indices)
        return self.attention(query, selected_key, selected_value, queries, self.selected)


def choose_attention(
    device: torch.device, dtype: torch.dtype, width: int, *, windowed: bool = False
) -> tuple[Attention, str]:
    """Return the fastest attention for a network, and the reason if it is not the packed one.

    Args:
        device: device that computes the attention.
        dtype: type of the states.
        width: width of a head.
        windowed: whether some layers have a window.
    """
    reason = _obstacle(device, dtype, width)
    if reason:
        return PaddedAttention(), reason
    module = importlib.import_module("torch.nn.attention.varlen")
    if windowed and "window_size" not in inspect.signature(module.varlen_attn).parameters:
        return PaddedAttention(), f"packed attention within a window needs a later PyTorch than {torch.__version__}"
    return VarlenAttention(module), ""


def _covers(window: int, bounds: Bounds) -> bool:
    """Return whether every token's window covers its whole sequence."""
    return bounds.longest <= window + 1


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, window: int) -> Tensor:
    """Return the context within a window, computed in blocks of two windows of packed tokens.

    Each block gets the keys of its own tokens and of a window on either side. A mask hides the keys that belong to
    other sequences or lie outside a token's window.
    """
    tokens, size = len(query), 2 * window
    blocks = -(-tokens // size)
    padding = blocks * size - tokens
    key_size = size + 2 * window
    key_padding = (window, window + padding)
    queries = functional.pad(query, (0, 0, 0, 0, 0, padding)).view(blocks, size, *query.shape[1:]).transpose(1, 2)
    keys, values = (
        functional.pad(states, (0, 0, 0, 0, *key_padding)).unfold(0, key_size, size).transpose(2, 3)
        for states in (key, value)
    )  # each (blocks, heads, key_size, width)
    sequence_numbers = bounds.sequence_numbers
    query_sequences = functional.pad(sequence_numbers, (0, padding), value=-1).view(blocks, size, 1)
    key_sequences = functional.pad(sequence_numbers, key_padding, value=-1).unfold(0, key_size, size).unsqueeze(1)
    positions = torch.arange(key_size, device=query.device)
    is_near = (positions - window - positions[:size, None]).abs() <= window  # (size, key_size)
    mask = ((query_sequences == key_sequences) & is_near).unsqueeze(1)
    context = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return context.transpose(1, 2).reshape(blocks * size, *query.shape[1:])[:tokens]


def _obstacle(device: torch.device, dtype: torch.dtype, width: int) -> str:
    """Return why the packed attention cannot be used; empty if it can."""
    if device.type != "cuda":
        return f"packed attention needs CUDA, this is {device.type}"
    if dtype not in FLASH_DTYPES:
        return f"packed attention needs fp16 or bf16, this is {str(dtype).removeprefix('torch.')}"
    if width not in FLASH_WIDTHS:
        return f"packed attention needs heads of 8, 16, ... 256 columns, these have {width}"
    if torch.cuda.get_device_capability(device) < FLASH_CAPABILITY:
        return f"packed attention needs compute capability 8.0, {torch.cuda.get_device_name(device)} has less"
    try:
        importlib.import_module("torch.nn.attention.varlen")
    except ModuleNotFoundError:
        return f"packed attention needs PyTorch 2.10, this is {torch.__version__}"
    return ""
