"""Convert a text's vector, or its token vectors for late interaction, to and from its stored form: a *record*.

A record of 384 dimensions takes about 400 bytes in the profile ``standard``. All numbers are little-endian:

| bytes | content |
|---|---|
| 4 | ``ORS1`` |
| 1 | bits per dimension: 32 or 8 |
| 1 | reserved: 0 |
| 1 | 1 if the text was truncated to the model's maximum length, else 0 |
| 1 | 0 if the vector has norm 1, else 1 |
| 2 | dimensions |
| 2 | number of token vectors. 0 for a single vector |
| 2 per vector | scale, fp16; only with 8 bits |
| 1 or 4 per dimension and vector | vector, int8 or float32 |
| 16 | BLAKE2b of the record's key and all bytes above, keyed with the secret if one is set |
"""

import hashlib
import hmac
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
MAX_INT8 = 127
"""The maximum absolute value in an int8 vector."""
PERSON = b"osrerank-vectors"
"""BLAKE2b's parameter ``person``, by which other programs get other digests from the same secret."""
NORM_TOLERANCE = 1e-3
"""The maximum difference between 1 and the norm of a vector that counts as a unit vector."""

FLOAT16 = np.dtype("<f2")
FLOAT32 = np.dtype("<f4")
INT8 = np.dtype("i1")

Bits = Literal[32, 8]

EXACT_BITS: Bits = 32
ROUNDED_BITS: Bits = 8
PROFILES: dict[str, Bits] = {"exact": EXACT_BITS, "standard": ROUNDED_BITS}
"""The bits per dimension of each value of the setting ``vectors_profile``."""


class VectorRecord(NamedTuple):
    """The vector of a text, or its token vectors, possibly rounded.

    Attributes:
        vector: float32 or int8 ``(dimensions,)``, or ``(tokens, dimensions)`` for late interaction.
        scale: the factor that turns int8 values into the original numbers, such as 0.002. For late interaction, these
            are factors ``(tokens, 1)``. For float32, the scale is 1.
        is_truncated: whether the text was truncated to the model's maximum length.
        is_unit: whether the vector had norm 1 before it was rounded. `stack_vectors` restores it. Another vector gets
            about its old norm by ``scale``.
    """

    vector: npt.NDArray[np.float32] | npt.NDArray[np.int8]
    scale: float | Floats
    is_truncated: bool
    is_unit: bool = True

    @property
    def bits(self) -> Bits:
        return EXACT_BITS if self.vector.dtype == FLOAT32 else ROUNDED_BITS

    @classmethod
    def from_vector(cls, vector: Floats, bits: Bits, *, is_truncated: bool) -> Self:
        """Create the record of a float32 vector ``(dimensions,)``, or of token vectors ``(tokens, dimensions)``."""
        is_unit = bool((np.abs(np.linalg.norm(vector, axis=-1) - 1) < NORM_TOLERANCE).all())
        if bits == EXACT_BITS:
            return cls(vector, 1.0, is_truncated, is_unit)
        maxima = np.abs(vector).max(axis=-1, initial=0, keepdims=True)
        scales = np.maximum(maxima / MAX_INT8, np.finfo(np.float16).tiny).astype(np.float16).astype(np.float32)
        rounded = np.clip(np.rint(vector / scales), -MAX_INT8, MAX_INT8).astype(np.int8)
        scale = scales if vector.ndim > 1 else float(scales[0])
        return cls(rounded, scale, is_truncated, is_unit)

    @classmethod
    def from_bytes(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Parse the bytes that `to_bytes` returned for the same key and secret. Return None for any other bytes.

        The values are also checked, because anybody can compute the digest if there is no secret.
        """
        body = remove_digest(content, key, secret)
        if body is None:
            return None
        record, length = cls.parse_body(body)
        return record if length == len(body) else None

    @classmethod
    def parse_body(cls, content: bytes | memoryview) -> tuple[Self | None, int]:
        """Parse the record without a digest that ``content`` begins with.

        Returns:
            The record and its length in bytes, or None and 0 if the bytes are not a record.
        """
        invalid = None, 0
        if len(content) < HEADER.size:
            return invalid
        magic, bits, reserved, is_truncated, has_other_norm, dimensions, n_tokens = HEADER.unpack_from(content)
        if magic != MAGIC or bits not in PROFILES.values() or reserved:
            return invalid
        length = _body_bytes(bits, dimensions, n_tokens)
        if len(content) < length:
            return invalid
        n_vectors = n_tokens or 1
        vector: npt.NDArray[Any]
        scale: float | Floats
        if bits == EXACT_BITS:
            vector = np.frombuffer(content, FLOAT32, count=n_vectors * dimensions, offset=HEADER.size)
            scale = 1.0
            is_valid = bool(np.isfinite(vector).all())
        else:
            scales = np.frombuffer(content, FLOAT16, count=n_vectors, offset=HEADER.size)
            vector_offset = HEADER.size + scales.nbytes
            vector = np.frombuffer(content, INT8, count=n_vectors * dimensions, offset=vector_offset)
            scale = scales.astype(np.float32)[:, None] if n_tokens else float(scales[0])
            is_valid = bool(scales.min() > 0 and scales.max() < math.inf)
        if not is_valid or not vector.any():
            return invalid
        if n_tokens:
            vector = vector.reshape(n_tokens, dimensions)
        return cls(vector, scale, is_truncated=bool(is_truncated), is_unit=not has_other_norm), length

    def fits(self, dimensions: int, bits: Bits, *, has_token_vectors: bool = False) -> bool:
        """Return whether the record has this size and precision, and either a single vector or one for each token."""
        n_axes = 2 if has_token_vectors else 1
        return self.bits == bits and self.vector.shape[-1] == dimensions and self.vector.ndim == n_axes

    def to_bytes(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the record as bytes, with a digest at the end.

        Args:
            key: the record's key, which the digest covers.
            secret: the key of the digest, at most 64 bytes. Nobody can forge a record without it.
        """
        return append_digest(self.body(), key, secret)

    def body(self) -> bytes:
        """Return the record as bytes, without a digest."""
        n_tokens = len(self.vector) if self.vector.ndim > 1 else 0
        dimensions = self.vector.shape[-1]
        header = HEADER.pack(MAGIC, self.bits, 0, self.is_truncated, not self.is_unit, dimensions, n_tokens)
        scales = b"" if self.bits == EXACT_BITS else np.float16(self.scale).tobytes()
        return header + scales + self.vector.tobytes()


def parse_single_vectors(
    contents: Mapping[bytes, bytes], dimensions: int, bits: Bits, secret: bytes = b""
) -> dict[bytes, VectorRecord]:
    """Parse many records of one vector each, faster than `VectorRecord.from_bytes`. Return the valid ones by key."""
    scale_field = [] if bits == EXACT_BITS else [("scale", FLOAT16.str)]
    vector_field = ("vector", (FLOAT32 if bits == EXACT_BITS else INT8).str, (dimensions,))
    layout = np.dtype([("header", f"V{HEADER.size}"), *scale_field, vector_field, ("digest", f"V{DIGEST_BYTES}")])
    keys = [key for key, content in contents.items() if len(content) == layout.itemsize]
    rows = np.frombuffer(b"".join([contents[key] for key in keys]), layout)
    flags_by_header = {  # all valid headers
        HEADER.pack(MAGIC, bits, 0, is_truncated, not is_unit, dimensions, 0): (is_truncated, is_unit)
        for is_truncated in (False, True)
        for is_unit in (False, True)
    }
    vectors = rows["vector"]
    scales = np.ones(len(keys)) if bits == EXACT_BITS else rows["scale"].astype(np.float64)
    validity = vectors.any(axis=1) & np.isfinite(scales) & (scales > 0)
    if bits == EXACT_BITS:
        validity &= np.isfinite(vectors).all(axis=1)
    records = {}
    for key, is_valid, vector, scale in zip(keys, validity.tolist(), vectors, scales.tolist(), strict=True):
        content = contents[key]
        flags = flags_by_header.get(content[: HEADER.size])
        if is_valid and flags and remove_digest(content, key, secret) is not None:
            is_truncated, is_unit = flags
            records[key] = VectorRecord(vector, scale, is_truncated, is_unit)
    return records


class TokenRows:
    """A sequence of the float32 token vectors ``(tokens, dimensions)`` of each record, which are computed on access."""

    def __init__(self, records: Sequence[VectorRecord]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Floats:
        return np.multiply(self._records[index].vector, self._records[index].scale, dtype=np.float32)


def stack_vectors(records: Sequence[VectorRecord]) -> Rows:
    """Return the vectors of at least one record, float32 ``(n, dimensions)``, or `TokenRows` for late interaction.

    Unit vectors have norm 1 again, although they were rounded.
    """
    if records[0].vector.ndim > 1:
        return TokenRows(records)
    numbers = np.concatenate([record.vector for record in records])  # much faster than np.stack
    rows: Floats = numbers.reshape(len(records), -1).astype(np.float32)
    if numbers.dtype != FLOAT32:
        # a unit vector is divided by the norm that it has after rounding, any other vector is multiplied by its scale
        divisors = np.sqrt(np.einsum("ij,ij->i", rows, rows))  # the norms
        for index, record in enumerate(records):
            if not record.is_unit:
                divisors[index] = 1 / record.scale
        rows /= divisors[:, None]
    return rows


def append_digest(body: bytes, key: bytes, secret: bytes) -> bytes:
    """Append a digest of a record's key and body to the body."""
    return body + _compute_digest(body, key, secret)


def remove_digest(content: bytes, key: bytes, secret: bytes) -> bytes | None:
    """Return the body of a record without its digest, or None if the digest is not valid."""
    body = content[:-DIGEST_BYTES]
    return body if hmac.compare_digest(_compute_digest(body, key, secret), content[-DIGEST_BYTES:]) else None


def record_size(bits: Bits, dimensions: int, tokens: int = 0) -> int:
    """Return the size of a record with its digest, in bytes. ``tokens`` is 0 for a single vector."""
    return _body_bytes(bits, dimensions, tokens) + DIGEST_BYTES


def _compute_digest(body: bytes, key: bytes, secret: bytes) -> bytes:
    content = b"%c%b%b" % (len(key), key, body)
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=secret, person=PERSON).digest()


def _body_bytes(bits: int, dimensions: int, tokens: int) -> int:
    """Return the size of a record without its digest, in bytes."""
    vector_bytes = dimensions * FLOAT32.itemsize if bits == EXACT_BITS else FLOAT16.itemsize + dimensions
    return HEADER.size + (tokens or 1) * vector_bytes
