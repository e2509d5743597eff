"""Attention between packed sequences, without padding.

Two ways compute the same thing. ``VarlenAttention`` is PyTorch's packed flash attention (Dao 2023, arXiv 2307.08691;
``torch.nn.attention.varlen``, PyTorch 2.10): CUDA, 16 bits. ``PaddedAttention`` pads the sequences only for the
attention and works everywhere: on the CPU, in fp32, on older GPUs and with older PyTorch.

All states are ``(tokens, heads, width)``, log-sum-exps ``(heads, tokens)`` in fp32, as the kernel gives them.

Within a window, each row sees so many positions to either side in its own sequence. Both ways then cost what the window
costs: the padded one computes blocks of packed tokens, each with what lies beside it.
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
"""The first CUDA compute capability with the flash kernel: Ampere's."""
FLASH_DTYPES = (torch.float16, torch.bfloat16)
FLASH_WIDTHS = range(8, 257, 8)
"""Head widths that the flash kernel supports."""
WINDOWS_ON_GRID = 4
"""A grid whose longest sequence has at most so many windows is faster with a mask than blocks are."""


@dataclass(frozen=True)
class Bounds:
    """Where each of n sequences begins and ends among packed tokens.

    Attributes:
        offsets: int32 ``(n + 1,)`` on the device: sequence i is ``offsets[i]:offsets[i + 1]``.
        lengths: tokens of each, ``(n,)``, in host memory; none is 0.
    """

    offsets: Tensor
    lengths: npt.NDArray[np.int32]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths.max())

    @cached_property
    def mask(self) -> Tensor | None:
        """Which positions of the padded grid are tokens, bool ``(n, 1, 1, longest)``; None when all of them are."""
        if (self.lengths == self.longest).all():
            return None
        is_token = np.arange(self.longest) < self.lengths[:, None]
        return torch.from_numpy(is_token).to(self.offsets.device)[:, None, None, :]

    @cached_property
    def indices(self) -> Tensor:
        """The index of each token in the padded grid, counted along its rows: int64 ``(tokens,)``."""
        is_token = np.arange(self.longest) < self.lengths[:, None]
        return torch.from_numpy(np.flatnonzero(is_token)).to(self.offsets.device)

    @cached_property
    def numbers(self) -> Tensor:
        """The number of each token's sequence: int64 ``(tokens,)``."""
        return torch.from_numpy(np.repeat(np.arange(len(self.lengths)), self.lengths)).to(self.offsets.device)

    def spread(self, states: Tensor) -> Tensor:
        """Return packed states as a padded grid ``(n, heads, longest, width)``, zero on padding."""
        if self.mask is not None:
            grid = states.new_zeros(len(self.lengths) * self.longest, *states.shape[1:])
            states = grid.index_copy_(0, self.indices, states)
        return states.view(len(self.lengths), self.longest, *states.shape[1:]).transpose(1, 2)

    def gather(self, grid: Tensor) -> Tensor:
        """Return the packed states of a padded grid ``(n, heads, longest, ...)``: the inverse of `spread`."""
        flat = grid.transpose(1, 2).flatten(0, 1)
        return flat if self.mask is None else flat.index_select(0, self.indices)


class Attention(Protocol):
    """Rows look at columns: sequence i of one at sequence i of the other."""

    @property
    def name(self) -> str:
        """What it is called in reports."""

    @property
    def packed(self) -> bool:
        """Whether it costs what the sequences' own lengths cost, or what the longest one makes of all."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Bounds, columns: Bounds, *, window: int | None = None
    ) -> Tensor:
        """Return the context of each row ``(tokens, heads, width)``.

        Args:
            query: the states of the rows.
            key: the states of the columns.
            value: likewise.
            rows: where the rows' sequences lie.
            columns: where the columns' do.
            window: how many positions to either side a row sees; rows and columns are then the same. None for all.
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
        self, query: Tensor, key: Tensor, value: Tensor, rows: Bounds, columns: Bounds, *, window: int | None = None
    ) -> Tensor:
        limit = {} if window is None or _sees_all(window, rows) else {"window_size": (window, window)}
        bounds = (rows.offsets, columns.offsets, rows.longest, columns.longest)
        context: Tensor = self._attend(query, key, value, *bounds, **limit)
        return context


class PaddedAttention:
    """Attention on a padded grid; everything else of the network stays packed."""

    name = "padded"
    packed = False

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Bounds, columns: Bounds, *, window: int | None = None
    ) -> Tensor:
        mask = columns.mask
        if window is not None and not _sees_all(window, rows):
            if rows.longest > WINDOWS_ON_GRID * window:
                return _in_blocks(query, key, value, rows, window)
            positions = torch.arange(rows.longest, device=query.device)
            near = (positions[:, None] - positions).abs() <= window
            mask = near[None, None] if mask is None else mask & near
        grid = functional.scaled_dot_product_attention(
            rows.spread(query), columns.spread(key), columns.spread(value), attn_mask=mask
        )
        return rows.gather(grid)


@dataclass(frozen=True)
class Partial:
    """Attention to some of the columns alone.

    Attributes:
        attention: computes it.
        indices: the indices of those columns among the packed tokens, int32.
        columns: where their sequences lie among them.
    """

    attention: Attention
    indices: Tensor
    columns: Bounds

    @property
    def name(self) -> str:
        """Of the attention that computes it."""
        return self.attention.name

    @property
    def packed(self) -> bool:
        """As in `Attention`."""
        return self.attention.packed

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Bounds, columns: Bounds, *, window: int | None = None
    ) -> Tensor:
        """As `Attention.__call__`; within a window, sequences may be no longer than it."""
        del columns
        if window is not None and not _sees_all(window, rows):
            raise InferenceError(
                f"a query has {rows.longest} tokens, and attention to a part needs at most {window + 1}"
            )
        keys, values = key.index_select(0, self.indices), value.index_select(0, self.indices)
        return self.attention(query, keys, values, rows, self.columns)


def choose_attention(
    device: torch.device, dtype: torch.dtype, width: int, *, windowed: bool = False
) -> tuple[Attention, str]:
    """Return the fastest attention for this device, type and head width, and why it is not the packed one.

    Args:
        device: where it computes.
        dtype: the type of the states.
        width: the width of a head.
        windowed: whether rows see a window alone in some layers.
    """
    reason = _obstacle(device, dtype, width)
    if reason:
        return PaddedAttention(), reason
    module = importlib.import_module("torch.nn.attention.varlen")
    if windowed and "window_size" not in inspect.signature(module.varlen_attn).parameters:
        return PaddedAttention(), f"packed attention within a window needs a later PyTorch than {torch.__version__}"
    return VarlenAttention(module), ""


def _sees_all(window: int, rows: Bounds) -> bool:
    """Return whether every row sees its whole sequence."""
    return rows.longest <= window + 1


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, rows: Bounds, window: int) -> Tensor:
    """Return the context within a window, for two windows of packed tokens at a time.

    A block sees what it has and a window before and behind it, whichever sequences that is; a mask keeps it to its own.
    """
    tokens, size = len(query), 2 * window
    blocks = -(-tokens // size)
    spare = blocks * size - tokens
    columns = size + 2 * window
    around = (window, window + spare)
    asked = functional.pad(query, (0, 0, 0, 0, 0, spare)).view(blocks, size, *query.shape[1:]).transpose(1, 2)
    keys, values = (
        functional.pad(states, (0, 0, 0, 0, *around)).unfold(0, columns, size).transpose(2, 3)
        for states in (key, value)
    )  # each (blocks, heads, columns, width)
    own = functional.pad(rows.numbers, (0, spare), value=-1).view(blocks, size, 1)
    theirs = functional.pad(rows.numbers, around, value=-1).unfold(0, columns, size).unsqueeze(1)
    positions = torch.arange(columns, device=query.device)
    near = (positions - window - positions[:size, None]).abs() <= window  # (size, columns)
    mask = ((own == theirs) & near).unsqueeze(1)
    context = functional.scaled_dot_product_attention(asked, keys, values, attn_mask=mask)
    return context.transpose(1, 2).reshape(blocks * size, *query.shape[1:])[:tokens]


def _obstacle(device: torch.device, dtype: torch.dtype, width: int) -> str:
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
