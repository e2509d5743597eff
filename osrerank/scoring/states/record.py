"""A document's record: what a joined model needs to know of it, in a few kilobytes.

A record has the document's pooled vector and, where layers are joined, the rows that enter each of them: neighbouring
pieces that are most alike share a row, their mean (`osrerank.scoring.networks.joined.merged`), and numbers have 8 or 4
bits with a scale for each row. Relatives: PreTTR (MacAvaney et al. 2020, arXiv 2004.14255) and SDR (Cohen et al. 2021,
arXiv 2110.02065).

The bytes of a record, all numbers little-endian:

| bytes | what |
|---|---|
| 4 | ``ORS1`` |
| 1 | bits of a number: 32, 8 or 4 |
| 1 | joined layers |
| 1 | 1 where the text was cut, else 0 |
| 1 | 0 |
| 2 | hidden size |
| 2 | rows of a layer |
| 2 a row | pieces in it |
| 2 a row and layer | scale, fp16; none with 32 bits |
| layers * rows * hidden * bits / 8 | states; of two numbers in a byte, the first has the lower half |
| 2 | scale of the vector, fp16; none with 32 bits |
| hidden, or 4 * hidden | the vector, 8 bits, or 32 |
| 16 | BLAKE2b of the record's key and all bytes before, keyed where a secret is given |
"""

import hashlib
import hmac
import math
import struct
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank.scoring.card import states_of

MAGIC = b"ORS1"
HEADER = struct.Struct("<4sBBBxHH")
DIGEST_BYTES = 16
LEAST_NORM = 1e-12
EXACT, VECTOR_BITS = 32, 8
MOST = {8: 127, 4: 7}
"""The largest number of so many bits."""
PERSON = b"osrerank-states"
"""Keeps a secret's digests apart from those that others make with it."""

UINT16, FLOAT16, FLOAT32, INT8 = (np.dtype(name) for name in ("<u2", "<f2", "<f4", "i1"))

HALVES = np.array([(both % 16 - 8, both // 16 - 8) for both in range(256)], dtype=np.int8).view(np.int16)[:, 0]
"""The two numbers in each byte, side by side."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Profile:
    """How much of a document is kept.

    Attributes:
        name: for settings and reports.
        factor: pieces for each row, on average.
        bits: of a number in the rows: 32, 8 or 4; the vector has 32 or 8.
    """

    name: str
    factor: float
    bits: int


PROFILES = {
    profile.name: profile
    for profile in (Profile("exact", 1.0, 32), Profile("standard", 4.0, 8), Profile("small", 8.0, 4))
}


@dataclass(frozen=True, slots=True)
class TextStates:
    """A text as it is alone.

    Attributes:
        layers: the rows that enter each of the joined layers, float32 ``(layers, rows, hidden)``.
        pieces: how many pieces each row stands for, uint16 ``(rows,)``.
        vector: pooled, of norm 1 up to rounding, float32 ``(hidden,)``.
        cut: whether the text was longer than the model reads.
    """

    layers: Floats
    pieces: npt.NDArray[np.uint16]
    vector: Floats
    cut: bool = False


def merged(states: TextStates, factor: float) -> TextStates:
    """Return a text's states with similar neighbours in one row, as `osrerank.scoring.networks.joined.merged`."""
    layers, rows = states.layers.shape[:2]
    if factor == 1 or not layers:
        return states
    normed = states.layers[0] / np.maximum(np.linalg.norm(states.layers[0], axis=1, keepdims=True), LEAST_NORM)
    likeness = (normed[1:] * normed[:-1]).sum(axis=1)
    first_of_run = np.argsort(likeness, kind="stable")[: states_of(rows, factor) - 1] + 1
    begins = np.concatenate(([0], np.sort(first_of_run)))
    pieces = np.diff(begins, append=rows)
    means = np.divide(np.add.reduceat(states.layers, begins, axis=1), pieces[:, None], dtype=np.float32)
    return TextStates(means, pieces.astype(np.uint16), states.vector, states.cut)


@dataclass(frozen=True, slots=True)
class Record:
    """A text's states as they are kept.

    Attributes:
        states: ``(layers, rows, hidden)``, float32 or int8.
        scales: of each row, float16 ``(layers, rows)``; ones where the states are float32.
        pieces: uint16 ``(rows,)``.
        vector: ``(hidden,)``, float32 or int8.
        vector_scale: of the vector; 1 where it is float32.
        bits: of a number in the states.
        cut: whether the text was longer than the model reads.
    """

    states: npt.NDArray[np.float32] | npt.NDArray[np.int8]
    scales: npt.NDArray[np.float16]
    pieces: npt.NDArray[np.uint16]
    vector: npt.NDArray[np.float32] | npt.NDArray[np.int8]
    vector_scale: float
    bits: int
    cut: bool

    @classmethod
    def of(cls, states: TextStates, profile: Profile) -> Self:
        """Return what a profile keeps of a text."""
        kept = merged(states, profile.factor)
        if profile.bits == EXACT:
            ones = np.ones(kept.layers.shape[:2], dtype=np.float16)
            return cls(kept.layers, ones, kept.pieces, kept.vector, 1.0, EXACT, kept.cut)
        rows, scales = _quantised(kept.layers, profile.bits)
        vector, scale = _quantised(kept.vector, VECTOR_BITS)
        return cls(rows, scales, kept.pieces, vector, float(scale), profile.bits, kept.cut)

    @classmethod
    def read(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Return the record in some bytes; None where they are not what `write` gave for this key and this secret.

        Without a secret anybody can write a digest, so that nothing in the bytes is trusted.
        """
        body = unsealed(content, key, secret)
        record, length = cls.parsed(body) if body is not None else (None, 0)
        return record if body is not None and length == len(body) else None

    @classmethod
    def parsed(cls, body: memoryview) -> tuple[Self | None, int]:
        """Return the record that some bytes begin with, without a digest, and its length; None where there is none."""
        nothing = None, 0
        if len(body) < HEADER.size:
            return nothing
        magic, bits, layers, cut, hidden, rows = HEADER.unpack_from(body)
        if magic != MAGIC or bits not in (EXACT, *MOST) or (bits == 4 and layers * rows * hidden % 2):
            return nothing
        length = _body_bytes(bits, layers, hidden, rows)
        if len(body) < length:
            return nothing
        at, exact = HEADER.size, bits == EXACT
        pieces, at = _array(body, at, UINT16, rows)
        scales, at = _array(body, at, FLOAT16, 0 if exact else layers * rows)
        if exact:
            states, at = _array(body, at, FLOAT32, layers * rows * hidden)
            vector, _ = _array(body, at, FLOAT32, hidden)
            scales, scale = np.ones(layers * rows, dtype=np.float16), 1.0
        else:
            packed, at = _array(body, at, INT8, layers * rows * hidden * bits // 8)
            states = _halves(packed) if bits == 4 else packed
            vector_scale, at = _array(body, at, FLOAT16, 1)
            vector, _ = _array(body, at, INT8, hidden)
            scale = float(vector_scale[0])
        if not math.isfinite(scale) or (layers and not (pieces.all() and np.isfinite(scales).all())):
            return nothing
        if not vector.any() or (exact and not (np.isfinite(states).all() and np.isfinite(vector).all())):
            return nothing
        states, scales = states.reshape(layers, rows, hidden), scales.reshape(layers, rows)
        return cls(states, scales, pieces, vector, scale, bits, bool(cut)), length

    def fits(self, layers: int, hidden: int, profile: Profile, most_rows: int) -> bool:
        """Return whether the record can be what a profile keeps of a text for a model.

        Args:
            layers: joined layers of the model.
            hidden: its width.
            profile: how much of a document is kept.
            most_rows: pieces of the longest text that the model reads.
        """
        has_rows = 0 < len(self.pieces) <= most_rows if layers else not len(self.pieces)
        return has_rows and self.bits == profile.bits and self.states.shape[::2] == (layers, hidden)

    def write(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the bytes that `read` reads.

        Args:
            key: what the record is found by; under another key the bytes are no record.
            secret: without it nobody can forge a record; at most 64 bytes.
        """
        return sealed(self.body(), key, secret)

    def body(self) -> bytes:
        """Return the bytes that `parsed` reads."""
        layers, rows, hidden = self.states.shape
        parts = [HEADER.pack(MAGIC, self.bits, layers, self.cut, hidden, rows), self.pieces.tobytes()]
        if self.bits == EXACT:
            parts += [self.states.tobytes(), self.vector.tobytes()]
        else:
            states = _in_halves(self.states) if self.bits == 4 else self.states
            scale = np.float16(self.vector_scale)
            parts += [self.scales.tobytes(), states.tobytes(), scale.tobytes(), self.vector.tobytes()]
        return b"".join(parts)


def sealed(body: bytes, key: bytes, secret: bytes) -> bytes:
    """Return bytes with the digest that they are recognised by."""
    return body + _digest(body, key, secret)


def unsealed(content: bytes, key: bytes, secret: bytes) -> memoryview | None:
    """Return the bytes that `sealed` was given for this key and this secret; None where it was not."""
    body = memoryview(content)[:-DIGEST_BYTES]
    return body if hmac.compare_digest(_digest(body, key, secret), content[-DIGEST_BYTES:]) else None


def _digest(body: bytes | memoryview, key: bytes, secret: bytes) -> bytes:
    total = hashlib.blake2b(len(key).to_bytes(1, "little") + key, digest_size=DIGEST_BYTES, key=secret, person=PERSON)
    total.update(body)
    return total.digest()


def most_bytes(profile: Profile, layers: int, hidden: int, most_rows: int) -> int:
    """Return how many bytes the record of the longest text takes.

    Args:
        profile: how much of it is kept.
        layers: joined layers of the model.
        hidden: its width.
        most_rows: pieces of the longest text that the model reads.
    """
    rows = states_of(most_rows, profile.factor) if layers else 0
    return _body_bytes(profile.bits, layers, hidden, rows) + DIGEST_BYTES


def _body_bytes(bits: int, layers: int, hidden: int, rows: int) -> int:
    """Return how long a record is without its digest."""
    if bits == EXACT:
        return HEADER.size + rows * UINT16.itemsize + (layers * rows + 1) * hidden * FLOAT32.itemsize
    scales = (layers * rows + 1) * FLOAT16.itemsize
    return HEADER.size + rows * UINT16.itemsize + scales + layers * rows * hidden * bits // 8 + hidden


def _array(body: memoryview, at: int, kind: np.dtype[Any], count: int) -> tuple[Any, int]:
    """Return an array in a record's bytes, and where the next one begins."""
    return np.frombuffer(body, kind, count, at), at + count * kind.itemsize


def _quantised(numbers: Floats, bits: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Return integers and the scale of each row: of the numbers along the last axis."""
    largest = np.abs(numbers).max(axis=-1, initial=0)
    scales = np.maximum(largest / MOST[bits], np.finfo(np.float16).tiny).astype(np.float16)
    integers = np.rint(numbers / scales[..., None].astype(np.float32))
    return np.clip(integers, -MOST[bits], MOST[bits]).astype(np.int8), scales


def _in_halves(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return numbers from -7 to 7, two to a byte."""
    raised = (numbers + 8).astype(np.uint8)
    return np.bitwise_or(raised[..., 0::2], np.left_shift(raised[..., 1::2], 4))


def _halves(packed: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Return what `_in_halves` packed, in one dimension."""
    return HALVES.take(packed.view(np.uint8)).view(np.int8)
