"""A long document's record: its passages' records and spans, so that a known document is not split again.

The bytes, all numbers little-endian:

| bytes | what |
|---|---|
| 4 | ``ORL1`` |
| 4 | number of passages |
| 4 | length of the names |
| that many | names of the fields, a list in JSON |
| 16 a passage | index of its field in that list (-1: the whole text), of its value (-1: the only one), start, end |
| the rest | the passages' records, each without its digest (`osrerank.vectors.record`) |
| 16 | digest, as a record's |
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from osrerank.types import Span
from osrerank.vectors.record import Bits, VectorRecord, sealed, unsealed

MAGIC = b"ORL1"
HEADER = struct.Struct("<4sII")
INT32 = np.dtype("<i4")
NUMBERS = 4
"""How many numbers describe a passage's span."""


@dataclass(frozen=True, slots=True)
class LongRecord:
    """The stored form of a document that is read by passages.

    Attributes:
        passages: the passages' records, at least one.
        spans: the span of each passage; None for the whole text.
    """

    passages: Sequence[VectorRecord]
    spans: Sequence[Span | None]

    @classmethod
    def read(cls, content: bytes, key: bytes, secret: bytes = b"") -> Self | None:
        """Return the record that `write` made with this key and this secret; None for any other bytes."""
        body = unsealed(content, key, secret)
        if body is None or len(body) < HEADER.size:
            return None
        magic, count, named = HEADER.unpack_from(body)
        at = HEADER.size + named + count * NUMBERS * INT32.itemsize
        if magic != MAGIC or not count or len(body) < at:
            return None
        spans = _spans(bytes(body[HEADER.size : HEADER.size + named]), body[HEADER.size + named : at])
        passages: list[VectorRecord] = []
        while len(passages) < count:
            record, length = VectorRecord.parsed(body[at:])
            if record is None:
                return None
            passages.append(record)
            at += length
        return cls(passages, spans) if spans is not None and at == len(body) else None

    def fits(self, hidden: int, bits: Bits, *, by_tokens: bool = False) -> bool:
        """Return whether every passage's record fits (`VectorRecord.fits`)."""
        return all(record.fits(hidden, bits, by_tokens=by_tokens) for record in self.passages)

    def write(self, key: bytes, secret: bytes = b"") -> bytes:
        """Return the bytes that `read` reads, as `VectorRecord.write` does."""
        fields = list(dict.fromkeys(span.field for span in self.spans if span is not None))
        names = json.dumps(fields).encode()
        numbers = [(-1, -1, 0, 0) if span is None else _numbers(span, fields) for span in self.spans]
        table = np.array(numbers, dtype=INT32).tobytes()
        header = HEADER.pack(MAGIC, len(self.passages), len(names))
        return sealed(b"".join([header, names, table, *(record.body() for record in self.passages)]), key, secret)


def _numbers(span: Span, fields: Sequence[str]) -> tuple[int, int, int, int]:
    return fields.index(span.field), -1 if span.value is None else span.value, span.start, span.end


def _spans(names: bytes, table: memoryview) -> list[Span | None] | None:
    """Return the spans in a record's bytes; None if the bytes are not valid."""
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
