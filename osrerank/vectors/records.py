"""Read and write a model's records.

A record's key is a digest of the raw text and everything else that its vector depends on. A changed text has another
key, so no score comes from an old text. A text with a record is neither tokenised nor encoded. The key does not depend
on the model's calibration or on BM25's weight, so records stay valid when these change.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from osrerank.types import LongText
from osrerank.vectors.background import Background
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.long_record import MAGIC, LongRecord
from osrerank.vectors.record import VectorRecord, read_all
from osrerank.vectors.store import VectorStore

KEY_BYTES = 16
LONG = b"by passages"
"""The prefix of the hashed content of a document that is split into passages."""
NOTHING: Mapping[Any, Any] = MappingProxyType({})

TextRecord = VectorRecord | LongRecord
"""The record of a text, or of a long text with its passages."""


class Records:
    """Reads and writes the records of documents for one model.

    Args:
        key: `osrerank.types.Encoder.key` of the model.
        dimensions: the length of a vector.
        storage: the store, the bits of each number, and the secret of the digests.
        by_tokens: whether each token has a vector, as in late interaction.

    Attributes:
        store: the store; None if records are not stored.
        bits: the bits of each stored number.
        model_key: a digest of everything that a record depends on except its text, 16 bytes.
    """

    def __init__(self, key: str, dimensions: int, storage: VectorStorage, *, by_tokens: bool = False) -> None:
        self.store, self.bits, self._secret = storage.store, storage.bits, storage.secret
        self._dimensions, self._by_tokens = dimensions, by_tokens
        self.model_key = _hash(f"{key}\0{self.bits}".encode())
        self._write_tasks = Background()

    def keys_of(self, texts: Iterable[str | LongText]) -> list[bytes]:
        """Return the key of each text's record, 16 bytes; for a long text, it also depends on how the text is split."""
        return [_hash(self.model_key + _content(text)) for text in texts]

    def position_key(self, index_uuid: str, reading: str) -> bytes:
        """Return the key under which builds store how far they read an index.

        It is a digest of everything that decides which records the index needs.

        Args:
            index_uuid: the identity of the index.
            reading: a description of the texts that are read of its documents.
        """
        return _hash(self.model_key + _hash(self._secret) + f"{index_uuid}\0{reading}".encode())

    def read_stored(self, keys: Sequence[bytes]) -> dict[bytes, TextRecord]:
        """Return the records that the store has, by key."""
        return {} if self.store is None else self.read_from(self.store, list(dict.fromkeys(keys)))

    def keep(self, records: Mapping[bytes, TextRecord]) -> None:
        """Write records to the store in the background."""
        if self.store is not None and records:
            self._write_tasks.submit(functools.partial(self.write, self.store, records))

    def write(self, store: VectorStore, records: Mapping[bytes, TextRecord]) -> int:
        """Write records to a store; return how many it accepted."""
        return store.write(self.contents(records))

    def contents(self, records: Mapping[bytes, TextRecord]) -> dict[bytes, bytes]:
        """Return the bytes to store for records, by key."""
        return {key: record.write(key, self._secret) for key, record in records.items()}

    def read(self, contents: Mapping[bytes, bytes]) -> dict[bytes, TextRecord]:
        """Return the valid records of this model among stored bytes, by key."""
        form = self._dimensions, self.bits
        records: dict[bytes, TextRecord] = {} if self._by_tokens else {**read_all(contents, *form, self._secret)}
        for key, content in contents.items():
            if key not in records:
                kind = LongRecord if content[: len(MAGIC)] == MAGIC else VectorRecord
                record = kind.read(content, key, self._secret)
                if record and record.fits(*form, by_tokens=self._by_tokens):
                    records[key] = record
        return records

    def read_from(self, store: VectorStore, keys: Sequence[bytes]) -> dict[bytes, TextRecord]:
        """Return the valid records that a store has, by key."""
        contents = store.read(keys) if keys else {}
        return self.read(contents) if contents else {}

    def flush(self) -> None:
        """Wait until the records given to `keep` are written."""
        self._write_tasks.close()

    def close(self) -> None:
        """Wait until all records are written; close the store, except the file, which the whole process shares."""
        self.flush()
        if self.store is not None and self.store.name != "file":
            self.store.close()


def _content(text: str | LongText) -> bytes:
    if isinstance(text, LongText):
        return LONG + text.content
    return _hash(text.encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
