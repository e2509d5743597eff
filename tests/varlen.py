"""A stand-in for ``torch.nn.attention.varlen`` on any device: its signature, sequence by sequence in fp64."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from osrerank.scoring.backends.networks.attention import PackedAttention, PaddedAttention


class AuxRequest(NamedTuple):
    lse: bool = False


class Varlen:
    """Computes what the module computes, refuses what its kernel refuses, and counts its calls."""

    AuxRequest = AuxRequest

    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []
        self.windows: list[tuple[int, int]] = []

    def varlen_attn(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        return_aux: AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor | tuple[Tensor, Tensor]:
        lengths = [offsets.diff().tolist() for offsets in (cu_seq_q, cu_seq_k)]
        check(query, cu_seq_q, max_q)
        for states in (key, value):
            check(states, cu_seq_k, max_k)
        assert key.shape == value.shape
        assert query.shape[1:] == key.shape[1:]
        assert len(cu_seq_q) == len(cu_seq_k)
        self.calls.append({"sequences": len(lengths[0]), "rows": sum(lengths[0]), "columns": sum(lengths[1])})
        assert window_size == (-1, -1) or lengths[0] == lengths[1]
        self.windows.append(window_size)
        pieces = [
            attend(*parts, scale or query.shape[2] ** -0.5, window_size)
            for parts in zip(query.split(lengths[0]), key.split(lengths[1]), value.split(lengths[1]), strict=True)
        ]
        context = torch.cat([piece[0] for piece in pieces]).to(query.dtype)
        lse = torch.cat([piece[1] for piece in pieces], dim=1).float()
        return (context, lse) if return_aux is not None and return_aux.lse else context


def check(states: Tensor, offsets: Tensor, longest: int) -> None:
    tokens, _, width = states.shape
    assert states.stride(2) == 1
    assert width % 8 == 0
    assert offsets.dtype == torch.int32
    assert offsets.is_contiguous()
    assert (offsets[0].item(), offsets[-1].item()) == (0, tokens)
    assert offsets.diff().max().item() == longest


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return a sequence's context ``(rows, heads, width)`` and log-sum-exp ``(heads, rows)``."""
    logits = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * scale
    if window != (-1, -1):
        after = torch.arange(len(key)) - torch.arange(len(query))[:, None]
        logits.masked_fill_((after < -window[0]) | (after > window[1]), -torch.inf)
    return torch.einsum("hqk,khd->qhd", logits.softmax(dim=2), value.double()), logits.logsumexp(dim=2)


attentions = pytest.mark.parametrize(
    "attention", [PaddedAttention, lambda: PackedAttention(Varlen())], ids=["padded", "packed"]
)
"""Attention as the CPU has it, on a padded grid, and through the arguments of the kernel."""
