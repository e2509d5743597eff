"""Pack a document's vector in a record of a few hundred bytes, or its tokens' vectors in a few thousand.

The bytes of a record in order, all numbers little-endian:

| bytes | content |
|---|---|
| 4 | ``ORS1`` |
| 1 | bits of each number of the vector: 32 or 8 |
| 1 | 0 |
| 1 | 1 if the text was cut to the model's length, else 0 |
| 1 | 0 if the vector has norm 1, else 1 |
| 2 | numbers of a vector |
| 2 | 0, or for late interaction the number of vectors |
| 2 a vector | its scale, fp16; absent with 32 bits |
| numbers or 4 * numbers a vector | the vector, in 8 or 32 bits |
| 16 | BLAKE2b of the record's key and all bytes before; keyed if there is a secret |
"""

import hashlib
import hmac
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from osrerank.types.vectors import Floats, Rows

MAGIC = b"ORS1"
HEADER = struct.Struct("<4sBBBBHH")
DIGEST_BYTES = 16
LARGEST = 127
"""The largest integer in an 8-bit vector; the smallest is its negative."""
PERSON = b"osrerank-vectors"
"""BLAKE2b's personalisation: other programs that use the same secret get other digests."""

FLAGS = tuple(itertools.product((False, True), repeat=2))
"""All combinations of two flags: whether a text was cut, and whether its vector's norm counts."""
UNIT = 1e-3
"""How far from 1 a norm may be and still count as 1."""

FLOAT16, FLOAT32, INT8 = (np.dtype(name) for name in ("<f2", "<f4", "i1"))

Bits = Literal[32, 8]

EXACT: Bits = 32
ROUNDED: Bits = 8
PROFILES: dict[str, Bits] = {"exact": EXACT, "standard": ROUNDED}
"""Value of the setting ``vectors_profile`` -> bits of each stored number."""


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """A text's vector, or its tokens' vectors, in the form in which they are stored.

    Attributes:
        vector: ``(hidden,)``, or for late interaction ``(tokens, hidden)``; float32 or int8.
        scale: what an int8 vector is multiplied by, for late interaction ``(tokens, 1)``; 1 for float32.
        cut: whether the text was longer than the model reads.
        is_unit: whether the vector had norm 1 before it was rounded; else its norm counts, as for dot products.
    """

    vector: npt.NDArray[np.float32] | npt.NDArray[np.int8]
    scale: float | Floats
    cut: bool
    is_unit: bool = True

    @property
    def bits(self) -> Bits:
        """Bits of each number of the vector."""
        return EXACT if self.vector.dtype == FLOAT32 else ROUNDED

    @classmethod
    def of(cls, vector: Floats, bits: Bits, *, cut: bool) -> Self:
        """Return the record of a text's vector ``(hidden,)`` or its tokens' ``(tokens, hidden)``, float32."""
        is_unit = bool((np.abs(np.linalg.norm(vector, axis=-1) - 1) < UNIT).all())
        if bits == EXACT:
            return cls(vector, 1.0, cut, is_unit)
        largest = np.abs(vector).max(axis=-1, initial=0, keepdims=True)
        scales = np.maximum(largest / LARGEST, np.finfo(np.float16).tiny).astype(np.float16).astype(np.float32)
        integers = np.clip(np.rint(vector / scales), -LARGEST, LARGEST).astype(np.int8)
        return cls(integers, scales if vector.ndim > 1 else float(scales[0]), cut, is_unit)

    @classmethod
    def read(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Return the record that `write` made with this key and this secret; None for any other bytes.

        Without a secret anybody can compute a digest, so all values are checked.
        """
        body = unsealed(content, key, secret)
        record, length = cls.parsed(body) if body is not None else (None, 0)
        return record if body is not None and length == len(body) else None

    @classmethod
    def parsed(cls, body: memoryview) -> tuple[Self | None, int]:
        """Parse a record without its digest at the start of bytes; return it, or None, and its length."""
        nothing = None, 0
        if len(body) < HEADER.size:
            return nothing
        magic, bits, layers, cut, as_is, hidden, rows = HEADER.unpack_from(body)
        if magic != MAGIC or bits not in PROFILES.values() or layers:
            return nothing
        length, count = _body_bytes(bits, hidden, rows), rows or 1
        if len(body) < length:
            return nothing
        vector: npt.NDArray[Any]
        scale: float | Floats = 1.0
        if bits == EXACT:
            vector = np.frombuffer(body, FLOAT32, count * hidden, HEADER.size)
        else:
            scales = np.frombuffer(body, FLOAT16, count, HEADER.size)
            scale = scales.astype(np.float32)[:, None] if rows else float(scales[0])
            vector = np.frombuffer(body, INT8, count * hidden, HEADER.size + scales.nbytes)
        least, most = (scale, scale) if isinstance(scale, float) else (scale.min(), scale.max())
        is_possible = least > 0 and most < math.inf
        if not is_possible or not vector.any() or (bits == EXACT and not np.isfinite(vector).all()):
            return nothing
        return cls(vector.reshape(rows, hidden) if rows else vector, scale, bool(cut), not as_is), length

    def fits(self, hidden: int, bits: Bits, *, by_tokens: bool = False) -> bool:
        """Return whether the record has a vector of this size and bits, or one for each token."""
        is_of_bits = self.vector.dtype == (FLOAT32 if bits == EXACT else INT8)
        return is_of_bits and self.vector.shape[-1] == hidden and self.vector.ndim == 1 + by_tokens

    def write(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the record as bytes with a digest, for `read`.

        Args:
            key: the record's key; `read` refuses the bytes under any other.
            secret: key of the digest, so that only its owner can make a record; at most 64 bytes.
        """
        return sealed(self.body(), key, secret)

    def body(self) -> bytes:
        """Return the record as bytes without a digest, for `parsed`."""
        *rows, hidden = self.vector.shape
        header = HEADER.pack(MAGIC, self.bits, 0, self.cut, not self.is_unit, hidden, *(rows or (0,)))
        scale = b"" if self.bits == EXACT else np.float16(self.scale).tobytes()
        return header + scale + self.vector.tobytes()


def read_all(
    contents: Mapping[bytes, bytes], hidden: int, bits: Bits, secret: bytes = b""
) -> dict[bytes, VectorRecord]:
    """Read many records of one vector each, as `VectorRecord.read` reads one but faster; return the valid ones by key.

    Records of another size or other bits are left out, and so are any other bytes.
    """
    numbers = (FLOAT32 if bits == EXACT else INT8).str
    scale = [] if bits == EXACT else [("scale", FLOAT16.str)]
    form = np.dtype([("head", "V12"), *scale, ("vector", numbers, (hidden,)), ("digest", "V16")])
    keys = [key for key, content in contents.items() if len(content) == form.itemsize]
    rows = np.frombuffer(b"".join([contents[key] for key in keys]), form)
    heads = {HEADER.pack(MAGIC, bits, 0, cut, as_is, hidden, 0): (bool(cut), not as_is) for cut, as_is in FLAGS}
    vectors, scales = rows["vector"], np.ones(len(keys)) if bits == EXACT else rows["scale"].astype(np.float64)
    are_valid = vectors.any(axis=1) & np.isfinite(scales) & (scales > 0)
    if bits == EXACT:
        are_valid &= np.isfinite(vectors).all(axis=1)
    found = {}
    for key, is_valid, vector, scale in zip(keys, are_valid.tolist(), vectors, scales.tolist(), strict=True):
        content = contents[key]
        if is_valid and (flags := heads.get(content[: HEADER.size])) and unsealed(content, key, secret) is not None:
            found[key] = VectorRecord(vector, scale, *flags)
    return found


class TokenRows:
    """A sequence of the token vectors of records, each ``(tokens, hidden)`` and computed when it is asked for.

    Args:
        records: records of late interaction.
    """

    def __init__(self, records: Sequence[VectorRecord]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, at: int) -> Floats:
        return np.multiply(self._records[at].vector, self._records[at].scale, dtype=np.float32)


def rows_of(records: Sequence[VectorRecord]) -> Rows:
    """Return the vectors of at least one record ``(n, hidden)``, with their norms before rounding, or `TokenRows`."""
    if records[0].vector.ndim > 1:
        return TokenRows(records)
    rows: Floats = np.stack([record.vector for record in records]).astype(np.float32)
    if records[0].vector.dtype != FLOAT32:  # rounding changed their norms
        divisors = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        for at, record in enumerate(records):
            if not record.is_unit:
                divisors[at] = 1 / record.scale
        rows /= divisors
    return rows


def sealed(body: bytes, key: bytes, secret: bytes) -> bytes:
    """Return bytes, followed by the digest of them and their key."""
    return body + _digest(body, key, secret)


def unsealed(content: bytes, key: bytes, secret: bytes) -> memoryview | None:
    """Return the bytes before the digest; None if the digest is not that of this key and this secret."""
    body = memoryview(content)[:-DIGEST_BYTES]
    return body if hmac.compare_digest(_digest(body, key, secret), content[-DIGEST_BYTES:]) else None


def record_bytes(bits: Bits, hidden: int, tokens: int = 0) -> int:
    """Return how many bytes a record takes, with its digest; ``tokens`` is how many have a vector, 0 for one vector."""
    return _body_bytes(bits, hidden, tokens) + DIGEST_BYTES


def _digest(body: bytes | memoryview, key: bytes, secret: bytes) -> bytes:
    total = hashlib.blake2b(len(key).to_bytes(1, "little") + key, digest_size=DIGEST_BYTES, key=secret, person=PERSON)
    total.update(body)
    return total.digest()


def _body_bytes(bits: int, hidden: int, rows: int) -> int:
    """Return how many bytes a record takes without its digest."""
    return HEADER.size + (rows or 1) * (hidden * FLOAT32.itemsize if bits == EXACT else FLOAT16.itemsize + hidden)
