"""Convert a long document's vectors to and from their stored form: the records and spans of its passages.

Because the spans are stored, a search need not split the document again. All numbers are little-endian:

| bytes | content |
|---|---|
| 4 | ``ORL1`` |
| 4 | number of passages |
| 4 | length of the field names in bytes |
| this length | names of the fields, a list in JSON |
| 16 per passage | the passage's span: index of the field's name, index of the value, start and end in characters |
| variable | the vector records of the passages, without digests (`osrerank.vectors.record`) |
| 16 | digest, as in a vector record |

The index of the field's name is -1 for the whole text. The index of the value is -1 if the field has a single value.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from osrerank.types import Span
from osrerank.vectors.record import Bits, VectorRecord, append_digest, remove_digest

MAGIC = b"ORL1"
HEADER = struct.Struct("<4sII")
INT32 = np.dtype("<i4")
SPAN_FIELDS = 4
"""The number of integers that describe a span: field, value, start and end."""


@dataclass(frozen=True, slots=True)
class LongRecord:
    """The vector records of a document's passages.

    Attributes:
        passages: the vector record of each passage, at least one.
        spans: the span of each passage, or None for the whole text.
    """

    passages: Sequence[VectorRecord]
    spans: Sequence[Span | None]

    @classmethod
    def from_bytes(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Parse the bytes that `to_bytes` returned for the same key and secret. Return None for any other bytes."""
        without_digest = remove_digest(content, key, secret)
        if without_digest is None or len(without_digest) < HEADER.size:
            return None
        body = memoryview(without_digest)  # its slices are not copies
        magic, n_passages, names_length = HEADER.unpack_from(body)
        spans_start = HEADER.size + names_length
        offset = spans_start + n_passages * SPAN_FIELDS * INT32.itemsize
        if magic != MAGIC or not n_passages or len(body) < offset:
            return None
        spans = _parse_spans(bytes(body[HEADER.size : spans_start]), body[spans_start:offset])
        if spans is None:
            return None
        passages: list[VectorRecord] = []
        while len(passages) < n_passages:
            record, length = VectorRecord.parse_body(body[offset:])
            if record is None:
                return None
            passages.append(record)
            offset += length
        return cls(passages, spans) if offset == len(body) else None

    def fits(self, dimensions: int, bits: Bits, *, has_token_vectors: bool = False) -> bool:
        """Return whether `VectorRecord.fits` is true for every passage."""
        return all(record.fits(dimensions, bits, has_token_vectors=has_token_vectors) for record in self.passages)

    def to_bytes(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the record as bytes, with a digest at the end; see `VectorRecord.to_bytes`."""
        fields = list(dict.fromkeys(span.field for span in self.spans if span is not None))
        names = json.dumps(fields).encode()
        numbers = np.array([_encode_span(span, fields) for span in self.spans], dtype=INT32).tobytes()
        header = HEADER.pack(MAGIC, len(self.passages), len(names))
        body = b"".join([header, names, numbers, *(record.body() for record in self.passages)])
        return append_digest(body, key, secret)


def _encode_span(span: Span | None, fields: Sequence[str]) -> tuple[int, int, int, int]:
    """Return a span as it is stored, such as ``(0, -1, 120, 480)`` for a part of the first field."""
    if span is None:
        return -1, -1, 0, 0
    value_index = -1 if span.value is None else span.value
    return fields.index(span.field), value_index, span.start, span.end


def _parse_spans(names: bytes, numbers: memoryview) -> list[Span | None] | None:
    """Parse the spans of a record. Return None if the bytes are not valid."""
    try:
        fields = json.loads(names)
        rows = np.frombuffer(numbers, INT32).reshape(-1, SPAN_FIELDS).tolist()
        spans: list[Span | None] = []
        for field_index, value_index, start, end in rows:
            if not 0 <= start <= end or value_index < -1:
                return None
            span = None
            if field_index >= 0:
                span = Span(str(fields[field_index]), start, end, None if value_index < 0 else value_index)
            spans.append(span)
    except (ValueError, LookupError, TypeError, RecursionError):  # a forged record
        return None
    return spans
