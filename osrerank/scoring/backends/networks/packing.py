"""Concatenate sequences into a batch without padding, in the CPU's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from osrerank.scoring.inputs import Tokens

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The concatenated tokens of n sequences. All arrays are int32.

    Two sequences of 3 and 2 tokens have the positions ``[0, 1, 2, 0, 1]`` and the lengths ``[3, 2]``.

    Attributes:
        ids: token ids ``(tokens,)``.
        positions: position of each token in its sequence ``(tokens,)``, from 0.
        segments: segment ids ``(tokens,)``.
        lengths: number of tokens in each sequence ``(n,)``.
    """

    ids: Int32Array
    positions: Int32Array
    segments: Int32Array
    lengths: Int32Array


def pack(sequences: Sequence[Tokens]) -> PackedBatch:
    """Concatenate the tokens of all sequences, in order."""
    lengths = np.array([len(tokens.ids) for tokens in sequences], dtype=np.int32)
    starts = np.repeat(compute_offsets(lengths)[:-1], lengths)
    positions = np.arange(len(starts), dtype=np.int32) - starts
    ids = np.concatenate([tokens.ids for tokens in sequences]).astype(np.int32)
    segments = np.concatenate([tokens.segments for tokens in sequences]).astype(np.int32)
    return PackedBatch(ids, positions, segments, lengths)


def compute_offsets(lengths: Int32Array) -> Int32Array:
    """Return where each packed sequence begins, and where the last one ends: ``[0, 3, 5]`` for lengths ``[3, 2]``."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
