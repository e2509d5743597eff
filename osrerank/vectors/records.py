"""Read and write a model's records.

A record's key is a digest of the raw text and everything else that its vector depends on. A changed text has another
key, so no score comes from an old text. A text with a record is neither tokenised nor encoded. A model's calibration
and BM25's weight are not part of the key, so records stay valid when these change.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
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
"""Prefix of what is hashed for a document that is read by passages."""
NOTHING: Mapping[Any, Any] = MappingProxyType({})

Kept = VectorRecord | LongRecord
"""The record of a text, or of a long text with its passages."""


class Records:
    """Reads and writes the records of documents for one model.

    Args:
        key: `osrerank.types.Encoder.key` of the model.
        dimensions: length of a vector.
        storage: where records are kept, and the bits of each number.
        by_tokens: whether each token has a vector, as in late interaction.

    Attributes:
        model_key: digest of all that a record depends on except its text, 16 bytes.
    """

    def __init__(self, key: str, dimensions: int, storage: VectorStorage, *, by_tokens: bool = False) -> None:
        self.store, self.bits, self._secret = storage.store, storage.bits, storage.secret
        self._dimensions, self._by_tokens = dimensions, by_tokens
        self.model_key = _hash(f"{key}\0{self.bits}".encode())
        self._writes = Background()

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        """Return the key of each text's record, 16 bytes each; a long text's also depends on how it is split."""
        return [_hash(self.model_key + _content(text)) for text in texts]

    def position_key(self, index_uuid: str, reading: str) -> bytes:
        """Return the key of the position of an index's builds: a digest of all that decides which records it needs.

        Args:
            index_uuid: identifies the index.
            reading: says which texts are read of its documents.
        """
        return _hash(self.model_key + _hash(self._secret) + f"{index_uuid}\0{reading}".encode())

    def known(self, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the records that the store has, by key."""
        return {} if self.store is None else self.read_from(self.store, list(dict.fromkeys(keys)))

    def keep(self, records: Mapping[bytes, Kept]) -> None:
        """Write records to the store in the background."""
        if self.store is not None and records:
            self._writes.submit(functools.partial(self.write, self.store, records))

    def write(self, store: VectorStore, records: Mapping[bytes, Kept]) -> int:
        """Write records to a store; return how many it accepted."""
        return store.write(self.contents(records))

    def contents(self, records: Mapping[bytes, Kept]) -> dict[bytes, bytes]:
        """Return the bytes to store for records, by key."""
        return {key: record.write(key, self._secret) for key, record in records.items()}

    def read(self, contents: Mapping[bytes, bytes]) -> dict[bytes, Kept]:
        """Return the valid records of this model among stored bytes, by key."""
        form = self._dimensions, self.bits
        found: dict[bytes, Kept] = {} if self._by_tokens else {**read_all(contents, *form, self._secret)}
        for key, content in contents.items():
            if key not in found:
                kind = LongRecord if content[: len(MAGIC)] == MAGIC else VectorRecord
                record = kind.read(content, key, self._secret)
                if record and record.fits(*form, by_tokens=self._by_tokens):
                    found[key] = record
        return found

    def read_from(self, store: VectorStore, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the records that a store has, by key."""
        found = store.read(keys) if keys else {}
        return self.read(found) if found else {}

    def flush(self) -> None:
        """Wait until all records are written."""
        self._writes.close()

    def close(self) -> None:
        self.flush()
        if self.store is not None and self.store.name != "file":  # the file is shared by the whole process
            self.store.close()


def _content(text: str | LongText) -> bytes:
    if isinstance(text, LongText):
        return LONG + text.content
    return _hash(text.encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
