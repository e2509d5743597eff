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
        positions: ``(tokens,)``, from 0 in every part.
        segments: ``(tokens,)``.
        lengths: tokens of each part, ``(parts,)``: the sequences, or the queries and then the documents.
    """

    ids: Numbers
    positions: Numbers
    segments: Numbers
    lengths: Numbers


def pack(sequences: Sequence[Tokens]) -> Packed:
    """Return the sequences in their order."""
    return _packed([tokens.ids for tokens in sequences], [tokens.segments for tokens in sequences])


def pack_by_segment(sequences: Sequence[Tokens]) -> Packed:
    """Return the query's part of every sequence, then the document's of every one; all get segment 0.

    Args:
        sequences: of a query, segment 0, and a document, segment 1.
    """
    divided = [np.split(one.ids, [np.searchsorted(one.segments, 1)]) for one in sequences]
    parts = [part for block in zip(*divided, strict=True) for part in block]
    return _packed(parts, [np.zeros_like(part) for part in parts])


def offsets(lengths: Numbers) -> Numbers:
    """Return where each part begins, and after them where the last one ends: int32 ``(parts + 1,)``."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _packed(ids: Sequence[npt.NDArray[np.int64]], segments: Sequence[npt.NDArray[np.int64]]) -> Packed:
    lengths = np.array([len(part) for part in ids], dtype=np.int32)
    starts = np.repeat(offsets(lengths)[:-1], lengths)
    positions = np.arange(len(starts), dtype=np.int32) - starts
    return Packed(np.concatenate(ids).astype(np.int32), positions, np.concatenate(segments).astype(np.int32), lengths)
