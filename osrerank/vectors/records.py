"""Read and write one model's records, the stored form of document vectors (`osrerank.vectors.record`).

A record's key is a digest of the text and of everything else that its vector depends on. So a changed text never gets
the score of its old version. Calibration and BM25's weight are not in the key, because they do not change vectors.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from osrerank.types import LongText
from osrerank.vectors.background import BackgroundTasks
from osrerank.vectors.long_record import MAGIC as LONG_MAGIC
from osrerank.vectors.long_record import LongRecord
from osrerank.vectors.record import VectorRecord, parse_single_vectors
from osrerank.vectors.storage import VectorStorage
from osrerank.vectors.store import VectorStore

KEY_BYTES = 16
"""The size of keys and digests, in bytes."""
PASSAGES_PREFIX = b"by passages"
"""The prefix of what is hashed for a document that is split into passages. Short texts have keys without it."""
EMPTY_MAPPING: Mapping[Any, Any] = MappingProxyType({})

TextRecord = VectorRecord | LongRecord
"""The record of a short text, or of a document that is split into passages."""


class Records:
    """Reads and writes the records of one model.

    Args:
        key: the model's `osrerank.types.Encoder.key`.
        dimensions: the length of a vector.
        storage: the store, the precision, and the secret of the digests.
        has_token_vectors: whether each token has a vector, as in late interaction.

    Attributes:
        store: the store, or None if records are not stored.
        bits: the bits per dimension.
        model_key: a digest of everything that records depend on except the texts, 16 bytes.
    """

    def __init__(self, key: str, dimensions: int, storage: VectorStorage, *, has_token_vectors: bool = False) -> None:
        self.store, self.bits, self._secret = storage.store, storage.bits, storage.secret
        self._dimensions, self._has_token_vectors = dimensions, has_token_vectors
        self.model_key = _hash(f"{key}\0{self.bits}".encode())
        self._writer = BackgroundTasks()

    def compute_keys(self, texts: Iterable[str | LongText]) -> list[bytes]:
        """Return the key of each text, 16 bytes. The key of a `LongText` also depends on how it is split."""
        return [_hash(self.model_key + _build_key_content(text)) for text in texts]

    def compute_progress_key(self, index_identity: str, text_options: str) -> bytes:
        """Return the key of an index's build progress (`osrerank.vectors.build_progress`).

        It depends on the secret, because a build with another secret must write all records again.

        Args:
            index_identity: the index's name and UUID.
            text_options: the fields and options that determine which text of a document is encoded.
        """
        return _hash(self.model_key + _hash(self._secret) + f"{index_identity}\0{text_options}".encode())

    def read_stored(self, keys: Sequence[bytes]) -> dict[bytes, TextRecord]:
        """Return the valid records in this model's store, by key."""
        return {} if self.store is None else self.read_from(self.store, list(dict.fromkeys(keys)))

    def read_from(self, store: VectorStore, keys: Sequence[bytes]) -> dict[bytes, TextRecord]:
        """Return the valid records in a store, by key."""
        return self.parse(store.read(keys)) if keys else {}

    def parse(self, contents: Mapping[bytes, bytes]) -> dict[bytes, TextRecord]:
        """Parse stored bytes, and return the valid records of this model by key."""
        records: dict[bytes, TextRecord] = {}
        if not self._has_token_vectors:
            records |= parse_single_vectors(contents, self._dimensions, self.bits, self._secret)
        for key, content in contents.items():
            if key not in records:
                record_type = LongRecord if content[: len(LONG_MAGIC)] == LONG_MAGIC else VectorRecord
                record = record_type.from_bytes(content, key, self._secret)
                if record and record.fits(self._dimensions, self.bits, has_token_vectors=self._has_token_vectors):
                    records[key] = record
        return records

    def write(self, store: VectorStore, records: Mapping[bytes, TextRecord]) -> int:
        """Write records to a store, and return how many were stored."""
        return store.write(self.to_contents(records))

    def write_later(self, records: Mapping[bytes, TextRecord]) -> None:
        """Write records to this model's store in the background."""
        if self.store is not None and records:
            self._writer.submit(functools.partial(self.write, self.store, records))

    def to_contents(self, records: Mapping[bytes, TextRecord]) -> dict[bytes, bytes]:
        """Return the stored form of records, by key."""
        return {key: record.to_bytes(key, self._secret) for key, record in records.items()}

    def flush(self) -> None:
        """Wait for the writes of `write_later`. More can follow."""
        self._writer.close()

    def close(self) -> None:
        """Wait for pending writes, and close the store. A file stays open, because the whole process shares it."""
        self.flush()
        if self.store is not None and self.store.name != "file":
            self.store.close()


def _build_key_content(text: str | LongText) -> bytes:
    """Return what a text's key is computed from, in addition to the model's key."""
    if isinstance(text, LongText):
        return PASSAGES_PREFIX + text.content
    return _hash(text.encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
