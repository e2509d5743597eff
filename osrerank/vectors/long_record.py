"""The record of a long document: the records and spans of its passages, so that searches need not split it again.

The bytes, all numbers little-endian:

| bytes | what |
|---|---|
| 4 | ``ORL1`` |
| 4 | number of passages |
| 4 | length of the names |
| this length | names of the fields, a list in JSON |
| 16 for each passage | index of its field in that list (-1: whole text), of its value (-1: only value), start, end |
| variable | the passages' records without digests (`osrerank.vectors.record`) |
| 16 | digest, as in the record of a short text |
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from osrerank.types import Span
from osrerank.vectors.record import Bits, VectorRecord, add_digest, check_digest

MAGIC = b"ORL1"
HEADER = struct.Struct("<4sII")
INT32 = np.dtype("<i4")
NUMBERS = 4
"""How many numbers describe the span of a passage."""


@dataclass(frozen=True, slots=True)
class LongRecord:
    """The stored form of a document that is split into passages.

    Attributes:
        passages: the passages' records, at least one.
        spans: the span of each passage; None for the whole text.
    """

    passages: Sequence[VectorRecord]
    spans: Sequence[Span | None]

    @classmethod
    def read(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Parse a record that `write` made with this key and this secret; return None for any other bytes."""
        checked = check_digest(content, key, secret)
        if checked is None or len(checked) < HEADER.size:
            return None
        body = memoryview(checked)  # slices of it are not copied
        magic, count, names_bytes = HEADER.unpack_from(body)
        table_start = HEADER.size + names_bytes
        offset = table_start + count * NUMBERS * INT32.itemsize
        if magic != MAGIC or not count or len(body) < offset:
            return None
        spans = _parse_spans(bytes(body[HEADER.size : table_start]), body[table_start:offset])
        passages: list[VectorRecord] = []
        while len(passages) < count:
            record, length = VectorRecord.parse(body[offset:])
            if record is None:
                return None
            passages.append(record)
            offset += length
        return cls(passages, spans) if spans is not None and offset == len(body) else None

    def fits(self, hidden: int, bits: Bits, *, by_tokens: bool = False) -> bool:
        """Return whether `VectorRecord.fits` holds for the record of every passage."""
        return all(record.fits(hidden, bits, by_tokens=by_tokens) for record in self.passages)

    def write(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the record as bytes with a digest, for `read`."""
        fields = list(dict.fromkeys(span.field for span in self.spans if span is not None))
        names = json.dumps(fields).encode()
        numbers = [(-1, -1, 0, 0) if span is None else _numbers(span, fields) for span in self.spans]
        table = np.array(numbers, dtype=INT32).tobytes()
        header = HEADER.pack(MAGIC, len(self.passages), len(names))
        return add_digest(b"".join([header, names, table, *(record.body() for record in self.passages)]), key, secret)


def _numbers(span: Span, fields: Sequence[str]) -> tuple[int, int, int, int]:
    return fields.index(span.field), -1 if span.value is None else span.value, span.start, span.end


def _parse_spans(names: bytes, table: memoryview) -> list[Span | None] | None:
    """Parse the spans of a record; return None if the bytes are not valid."""
    try:
        fields = json.loads(names)
        rows = np.frombuffer(table, INT32).reshape(-1, NUMBERS).tolist()
        if not all(0 <= start <= end and value >= -1 for _, value, start, end in rows):
            return None
        return [
            None if field < 0 else Span(str(fields[field]), start, end, None if value < 0 else value)
            for field, value, start, end in rows
        ]
    except (ValueError, LookupError, TypeError, RecursionError):  # forged
        return None
