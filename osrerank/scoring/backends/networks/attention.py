"""Compute attention within packed sequences, in two implementations that give the same values.

Packed means that the tokens of all sequences of a batch are concatenated without padding: the queries, keys and values
of two sequences of 2 and 3 tokens have the shape ``(5, heads, width)``.

`PackedAttention` is PyTorch's packed flash attention (Dao 2023, arXiv 2307.08691; ``torch.nn.attention.varlen``,
PyTorch 2.10). It needs CUDA and 16-bit numbers. `PaddedAttention` works everywhere: on the CPU, in fp32, on older GPUs
and with older PyTorch. For the attention only, it pads the sequences to a grid ``(n, heads, max_length, width)``.

In some layers of ModernBERT, each token attends only to the ``window`` nearest positions on either side, within its
sequence. The cost then grows with the window instead of the sequence. `PaddedAttention` splits the packed tokens into
blocks of two windows, and each block attends to itself and to one window on either side.
"""

import importlib
import inspect
import math
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
"""The lowest CUDA compute capability that the flash kernel supports: GPUs since Ampere."""
FLASH_DTYPES = (torch.float16, torch.bfloat16)
FLASH_WIDTHS = range(8, 257, 8)
"""Head widths that the flash kernel supports."""
MAX_GRID_WINDOWS = 4
"""If the longest sequence has at most this number of windows, one masked grid is faster than blocks."""


@dataclass(frozen=True)
class Bounds:
    """The positions of n sequences among packed tokens.

    Attributes:
        offsets: offsets on the device, int32 ``(n + 1,)``, such as ``[0, 2, 5]``. The tokens of sequence i are
            ``offsets[i]:offsets[i + 1]``.
        lengths: number of tokens in each sequence ``(n,)``, above 0, in host memory, such as ``[2, 3]``.
    """

    offsets: Tensor
    lengths: npt.NDArray[np.int32]

    @cached_property
    def max_length(self) -> int:
        return int(self.lengths.max())

    @cached_property
    def padding_mask(self) -> Tensor | None:
        """The padded grid's mask, bool ``(n, 1, 1, max_length)``: true for tokens. None if the grid has no padding."""
        if (self.lengths == self.max_length).all():
            return None
        is_token = np.arange(self.max_length) < self.lengths[:, None]
        return torch.from_numpy(is_token).to(self.offsets.device)[:, None, None, :]

    @cached_property
    def grid_indices(self) -> Tensor:
        """The index of each token in the flattened padded grid, such as ``[0, 1, 3, 4, 5]``."""
        is_token = np.arange(self.max_length) < self.lengths[:, None]
        return torch.from_numpy(np.flatnonzero(is_token)).to(self.offsets.device)

    @cached_property
    def sequence_numbers(self) -> Tensor:
        """The number of the sequence to which each token belongs, int64 ``(tokens,)``, such as ``[0, 0, 1, 1, 1]``."""
        return torch.from_numpy(np.repeat(np.arange(len(self.lengths)), self.lengths)).to(self.offsets.device)

    def pad(self, states: Tensor) -> Tensor:
        """Return packed states as a padded grid ``(n, heads, max_length, width)``, with zeros on padding."""
        if self.padding_mask is not None:
            grid = states.new_zeros(len(self.lengths) * self.max_length, *states.shape[1:])
            states = grid.index_copy_(0, self.grid_indices, states)
        return states.view(len(self.lengths), self.max_length, *states.shape[1:]).transpose(1, 2)

    def unpad(self, grid: Tensor) -> Tensor:
        """Return the packed states of a padded grid ``(n, heads, max_length, ...)``: the inverse of `pad`."""
        flat = grid.transpose(1, 2).flatten(0, 1)
        return flat if self.padding_mask is None else flat.index_select(0, self.grid_indices)


class Attention(Protocol):
    """Attention, in which the queries of a sequence attend to the keys of the same sequence."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_bounds: Bounds,
        key_bounds: Bounds,
        *,
        window: int | None = None,
    ) -> Tensor:
        """Return the output for each query ``(queries, heads, width)``. Keys and values are ``(keys, heads, width)``.

        A query attends to at most ``window`` positions on either side, or to its whole sequence if ``window`` is None.
        With a window, the queries and keys must belong to the same tokens.
        """


class PackedAttention:
    """PyTorch's packed flash attention, from the module ``torch.nn.attention.varlen``."""

    name = "packed"
    """The name in the backend's description."""
    is_packed = True
    """Whether a batch is computed without padding; see `Backend.is_packed`."""

    def __init__(self, module: Any) -> None:
        self._attend: Callable[..., Any] = module.varlen_attn

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_bounds: Bounds,
        key_bounds: Bounds,
        *,
        window: int | None = None,
    ) -> Tensor:
        options = {}
        if window is not None and not _window_covers(window, query_bounds):
            options["window_size"] = (window, window)  # to the left and to the right
        bounds = (query_bounds.offsets, key_bounds.offsets, query_bounds.max_length, key_bounds.max_length)
        output: Tensor = self._attend(query, key, value, *bounds, **options)
        return output


class PaddedAttention:
    """Attention on a padded grid, or in blocks if the window is much shorter than the sequences."""

    name = "padded"
    is_packed = False

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_bounds: Bounds,
        key_bounds: Bounds,
        *,
        window: int | None = None,
    ) -> Tensor:
        mask = key_bounds.padding_mask
        if window is not None and not _window_covers(window, query_bounds):
            if query_bounds.max_length > MAX_GRID_WINDOWS * window:
                return _attend_in_blocks(query, key, value, query_bounds, window)
            positions = torch.arange(query_bounds.max_length, device=query.device)
            is_near = (positions[:, None] - positions).abs() <= window  # (max_length, max_length)
            mask = is_near[None, None] if mask is None else mask & is_near
        grid = functional.scaled_dot_product_attention(
            query_bounds.pad(query), key_bounds.pad(key), key_bounds.pad(value), attn_mask=mask
        )
        return query_bounds.unpad(grid)


BatchAttention = PackedAttention | PaddedAttention
"""Attention to all keys of each sequence, unlike `PartialAttention`."""


@dataclass(frozen=True)
class PartialAttention:
    """Attention to selected keys only, such as those of a search text's words without the [MASK] tokens that expand it.

    Attributes:
        attention: the attention that is applied to the selected keys.
        indices: indices of the selected keys among the packed tokens, int32.
        selected_bounds: bounds of the sequences of selected keys.
    """

    attention: Attention
    indices: Tensor
    selected_bounds: Bounds

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_bounds: Bounds,
        key_bounds: Bounds,
        *,
        window: int | None = None,
    ) -> Tensor:
        """Return the output for each query; see `Attention`.

        Raises:
            InferenceError: a window does not cover a whole sequence.
        """
        del key_bounds  # the selected keys have other bounds
        if window is not None and not _window_covers(window, query_bounds):
            reason = f"a text has {query_bounds.max_length} tokens, which is too long for this model's attention window"
            raise InferenceError(f"{reason}; it can expand queries only if texts have at most {window + 1} tokens")
        selected_key, selected_value = key.index_select(0, self.indices), value.index_select(0, self.indices)
        return self.attention(query, selected_key, selected_value, query_bounds, self.selected_bounds)


def choose_attention(
    device: torch.device, dtype: torch.dtype, width: int, *, has_windows: bool = False
) -> tuple[BatchAttention, str]:
    """Return the fastest attention for heads of this width, and the reason if it is padded ("" if it is packed)."""
    reason = _unsupported_reason(device, dtype, width)
    if reason:
        return PaddedAttention(), reason
    module = importlib.import_module("torch.nn.attention.varlen")
    if has_windows and "window_size" not in inspect.signature(module.varlen_attn).parameters:
        return PaddedAttention(), f"packed attention within a window needs a later PyTorch than {torch.__version__}"
    return PackedAttention(module), ""


def _window_covers(window: int, bounds: Bounds) -> bool:
    """Return whether the window of each token covers the token's whole sequence."""
    return bounds.max_length <= window + 1


def _attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, window: int) -> Tensor:
    """Return the output of attention with a window, computed in blocks of ``2 * window`` packed tokens.

    The queries of a block attend to the block's keys, and to the keys of one window on either side. A mask hides the
    keys of other sequences and those outside a token's window. Padding belongs to the sequence -1.
    """
    n_tokens = len(query)
    block_size = 2 * window
    key_size = block_size + 2 * window
    n_blocks = math.ceil(n_tokens / block_size)
    padding = n_blocks * block_size - n_tokens
    key_padding = (window, window + padding)
    # `functional.pad` takes the padding of the last dimension first; here it pads the tokens, the first dimension
    query_blocks = functional.pad(query, (0, 0, 0, 0, 0, padding)).view(n_blocks, block_size, *query.shape[1:])
    # a block of keys begins one window before the block of queries, and ends one window after it
    key_blocks, value_blocks = (
        functional.pad(states, (0, 0, 0, 0, *key_padding)).unfold(0, key_size, block_size).transpose(2, 3)
        for states in (key, value)
    )  # each (n_blocks, heads, key_size, width)
    numbers = bounds.sequence_numbers
    query_sequences = functional.pad(numbers, (0, padding), value=-1).view(n_blocks, block_size, 1)
    key_sequences = functional.pad(numbers, key_padding, value=-1).unfold(0, key_size, block_size).unsqueeze(1)
    query_positions = torch.arange(block_size, device=query.device)  # from the block's first query
    key_positions = torch.arange(key_size, device=query.device) - window
    is_near = (key_positions - query_positions[:, None]).abs() <= window  # (block_size, key_size)
    mask = ((query_sequences == key_sequences) & is_near).unsqueeze(1)
    output = functional.scaled_dot_product_attention(
        query_blocks.transpose(1, 2), key_blocks, value_blocks, attn_mask=mask
    )
    return output.transpose(1, 2).reshape(n_blocks * block_size, *query.shape[1:])[:n_tokens]


def _unsupported_reason(device: torch.device, dtype: torch.dtype, width: int) -> str:
    """Return the reason why `PackedAttention` cannot be used, or "" if it can."""
    if device.type != "cuda":
        return f"packed attention needs CUDA, but the device is {device.type}"
    if dtype not in FLASH_DTYPES:
        return f"packed attention needs fp16 or bf16, but the model is in {str(dtype).removeprefix('torch.')}"
    if width not in FLASH_WIDTHS:
        return f"packed attention needs heads of the width 8, 16, ... 256, but the model's have {width}"
    if torch.cuda.get_device_capability(device) < FLASH_CAPABILITY:
        return f"packed attention needs compute capability 8.0, but {torch.cuda.get_device_name(device)} has less"
    try:
        importlib.import_module("torch.nn.attention.varlen")
    except ModuleNotFoundError:
        return f"packed attention needs PyTorch 2.10, but {torch.__version__} is installed"
    return ""
