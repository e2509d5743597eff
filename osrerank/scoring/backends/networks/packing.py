"""Packed sequences: a batch without padding, in host memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from osrerank.scoring.inputs import Tokens

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens of n sequences, all int32.

    Attributes:
        ids: ``(tokens,)``.
        positions: ``(tokens,)``, from 0 in every sequence.
        segments: ``(tokens,)``.
        lengths: tokens of each sequence, ``(n,)``.
    """

    ids: Numbers
    positions: Numbers
    segments: Numbers
    lengths: Numbers


def pack(sequences: Sequence[Tokens]) -> Packed:
    """Return the sequences in their order."""
    lengths = np.array([len(tokens.ids) for tokens in sequences], dtype=np.int32)
    starts = np.repeat(offsets(lengths)[:-1], lengths)
    positions = np.arange(len(starts), dtype=np.int32) - starts
    ids, segments = (
        np.concatenate(parts).astype(np.int32)
        for parts in zip(*((one.ids, one.segments) for one in sequences), strict=True)
    )
    return Packed(ids, positions, segments, lengths)


def offsets(lengths: Numbers) -> Numbers:
    """Return where each part begins, and after them where the last one ends: int32 ``(parts + 1,)``."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
