"""The record of a text: its vector in a few hundred bytes, or the vectors of its tokens in a few thousand.

The bytes of a record in order, all numbers little-endian:

| bytes | content |
|---|---|
| 4 | ``ORS1`` |
| 1 | bits of each number of the vector: 32 or 8 |
| 1 | reserved: 0 |
| 1 | 1 if the text was cut to the model's length, else 0 |
| 1 | 0 if the vector has norm 1, else 1 |
| 2 | length of a vector |
| 2 | 0, or for late interaction the number of vectors |
| 2 for each vector | its scale, fp16; absent with 32 bits |
| length, or 4 * length, for each vector | the vector, in 8 or 32 bits |
| 16 | BLAKE2b of the record's key and all bytes before it; keyed with the secret, if one is set |
"""

import hashlib
import hmac
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from osrerank.types.vectors import Floats, Rows

MAGIC = b"ORS1"
HEADER = struct.Struct("<4sBBBBHH")
DIGEST_BYTES = 16
LARGEST = 127
"""The largest integer in an 8-bit vector; the smallest is -127."""
PERSON = b"osrerank-vectors"
"""The personalisation of BLAKE2b: another program that uses the same secret gets different digests."""

FLAGS = tuple(itertools.product((False, True), repeat=2))
"""All combinations of two flags: whether a text was cut, and whether its vector's norm counts."""
UNIT = 1e-3
"""The largest distance from 1 at which a norm counts as 1."""

FLOAT16, FLOAT32, INT8 = (np.dtype(name) for name in ("<f2", "<f4", "i1"))

Bits = Literal[32, 8]

EXACT: Bits = 32
ROUNDED: Bits = 8
PROFILES: dict[str, Bits] = {"exact": EXACT, "standard": ROUNDED}
"""Value of the setting ``vectors_profile`` -> bits of each stored number."""


class VectorRecord(NamedTuple):
    """A text's vector, or its tokens' vectors, in the form in which they are stored.

    Attributes:
        vector: ``(hidden,)``, or for late interaction ``(tokens, hidden)``; float32 or int8.
        scale: the factor of an int8 vector, for late interaction ``(tokens, 1)``; 1 for float32.
        cut: whether the text was longer than the model reads.
        is_unit: whether the vector had norm 1 before it was rounded; if not, its norm is kept, for dot products.
    """

    vector: npt.NDArray[np.float32] | npt.NDArray[np.int8]
    scale: float | Floats
    cut: bool
    is_unit: bool = True

    @property
    def bits(self) -> Bits:
        """The bits of each number of the vector."""
        return EXACT if self.vector.dtype == FLOAT32 else ROUNDED

    @classmethod
    def of(cls, vector: Floats, bits: Bits, *, cut: bool) -> Self:
        """Make the record of a text's vector ``(hidden,)``, or of its tokens' vectors ``(tokens, hidden)``, float32."""
        is_unit = bool((np.abs(np.linalg.norm(vector, axis=-1) - 1) < UNIT).all())
        if bits == EXACT:
            return cls(vector, 1.0, cut, is_unit)
        largest = np.abs(vector).max(axis=-1, initial=0, keepdims=True)
        scales = np.maximum(largest / LARGEST, np.finfo(np.float16).tiny).astype(np.float16).astype(np.float32)
        integers = np.clip(np.rint(vector / scales), -LARGEST, LARGEST).astype(np.int8)
        return cls(integers, scales if vector.ndim > 1 else float(scales[0]), cut, is_unit)

    @classmethod
    def read(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Parse a record that `write` made with this key and this secret; return None for any other bytes.

        All values are checked, because without a secret anybody can compute the digest.
        """
        body = check_digest(content, key, secret)
        record, length = cls.parse(body) if body is not None else (None, 0)
        return record if body is not None and length == len(body) else None

    @classmethod
    def parse(cls, body: bytes | memoryview) -> tuple[Self | None, int]:
        """Parse a record without a digest at the start of bytes; return it and its length, or None and 0."""
        invalid = None, 0
        if len(body) < HEADER.size:
            return invalid
        magic, bits, reserved, cut, has_norm, hidden, rows = HEADER.unpack_from(body)
        if magic != MAGIC or bits not in PROFILES.values() or reserved:
            return invalid
        length, count = _body_bytes(bits, hidden, rows), rows or 1
        if len(body) < length:
            return invalid
        vector: npt.NDArray[Any]
        scale: float | Floats = 1.0
        if bits == EXACT:
            vector = np.frombuffer(body, FLOAT32, count * hidden, HEADER.size)
        else:
            scales = np.frombuffer(body, FLOAT16, count, HEADER.size)
            scale = scales.astype(np.float32)[:, None] if rows else float(scales[0])
            vector = np.frombuffer(body, INT8, count * hidden, HEADER.size + scales.nbytes)
        smallest, largest = (scale, scale) if isinstance(scale, float) else (scale.min(), scale.max())
        is_possible = smallest > 0 and largest < math.inf
        if not is_possible or not vector.any() or (bits == EXACT and not np.isfinite(vector).all()):
            return invalid
        return cls(vector.reshape(rows, hidden) if rows else vector, scale, bool(cut), not has_norm), length

    def fits(self, hidden: int, bits: Bits, *, by_tokens: bool = False) -> bool:
        """Return whether the record has a vector of this length and precision, or such a vector for each token."""
        is_of_bits = self.vector.dtype == (FLOAT32 if bits == EXACT else INT8)
        return is_of_bits and self.vector.shape[-1] == hidden and self.vector.ndim == 1 + by_tokens

    def write(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the record as bytes with a digest, for `read`.

        Args:
            key: the record's key; `read` returns None for another key.
            secret: the key of the digest, without which nobody can make a valid record; at most 64 bytes.
        """
        return add_digest(self.body(), key, secret)

    def body(self) -> bytes:
        """Return the record as bytes without a digest, for `parse`."""
        *rows, hidden = self.vector.shape
        header = HEADER.pack(MAGIC, self.bits, 0, self.cut, not self.is_unit, hidden, *(rows or (0,)))
        scale = b"" if self.bits == EXACT else np.float16(self.scale).tobytes()
        return header + scale + self.vector.tobytes()


def read_all(
    contents: Mapping[bytes, bytes], hidden: int, bits: Bits, secret: bytes = b""
) -> dict[bytes, VectorRecord]:
    """Parse many records of one vector each, faster than `VectorRecord.read`; return the valid records by key.

    Records of another length or precision are left out, and so are bytes of any other kind.
    """
    numbers = (FLOAT32 if bits == EXACT else INT8).str
    scale = [] if bits == EXACT else [("scale", FLOAT16.str)]
    form = np.dtype([("head", "V12"), *scale, ("vector", numbers, (hidden,)), ("digest", "V16")])
    keys = [key for key, content in contents.items() if len(content) == form.itemsize]
    rows = np.frombuffer(b"".join([contents[key] for key in keys]), form)
    heads = {HEADER.pack(MAGIC, bits, 0, cut, has_norm, hidden, 0): (cut, not has_norm) for cut, has_norm in FLAGS}
    vectors, scales = rows["vector"], np.ones(len(keys)) if bits == EXACT else rows["scale"].astype(np.float64)
    are_valid = vectors.any(axis=1) & np.isfinite(scales) & (scales > 0)
    if bits == EXACT:
        are_valid &= np.isfinite(vectors).all(axis=1)
    records = {}
    for key, is_valid, vector, scale in zip(keys, are_valid.tolist(), vectors, scales.tolist(), strict=True):
        content = contents[key]
        if is_valid and (flags := heads.get(content[: HEADER.size])) and check_digest(content, key, secret) is not None:
            records[key] = VectorRecord(vector, scale, *flags)
    return records


class TokenRows:
    """The token vectors ``(tokens, hidden)`` of each record, in full precision; a record's are computed on access.

    Args:
        records: the records of texts for late interaction.
    """

    def __init__(self, records: Sequence[VectorRecord]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Floats:
        return np.multiply(self._records[index].vector, self._records[index].scale, dtype=np.float32)


def rows_of(records: Sequence[VectorRecord]) -> Rows:
    """Return the vectors of records ``(n, hidden)`` with the norms that they had before rounding, or `TokenRows`.

    Args:
        records: at least one record.
    """
    if records[0].vector.ndim > 1:
        return TokenRows(records)
    numbers = np.concatenate([record.vector for record in records])  # much faster than np.stack
    rows: Floats = numbers.reshape(len(records), -1).astype(np.float32)
    if numbers.dtype != FLOAT32:  # rounding changed the norms
        divisors = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        for index, record in enumerate(records):
            if not record.is_unit:
                divisors[index] = 1 / record.scale
        rows /= divisors[:, None]
    return rows


def add_digest(body: bytes, key: bytes, secret: bytes) -> bytes:
    """Return a record's body followed by its digest, which also covers the record's key."""
    return body + _digest(body, key, secret)


def check_digest(content: bytes, key: bytes, secret: bytes) -> bytes | None:
    """Return the body of a record; None if its digest does not fit the body, this key and this secret."""
    body = content[:-DIGEST_BYTES]
    return body if hmac.compare_digest(_digest(body, key, secret), content[-DIGEST_BYTES:]) else None


def record_bytes(bits: Bits, hidden: int, tokens: int = 0) -> int:
    """Return the size of a record with its digest, in bytes; ``tokens`` is 0 for one vector of the whole text."""
    return _body_bytes(bits, hidden, tokens) + DIGEST_BYTES


def _digest(body: bytes, key: bytes, secret: bytes) -> bytes:
    content = b"%c%b%b" % (len(key), key, body)
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=secret, person=PERSON).digest()


def _body_bytes(bits: int, hidden: int, rows: int) -> int:
    """Return the size of a record without its digest, in bytes."""
    return HEADER.size + (rows or 1) * (hidden * FLOAT32.itemsize if bits == EXACT else FLOAT16.itemsize + hidden)
