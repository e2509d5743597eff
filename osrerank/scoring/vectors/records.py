"""Read and write a model's records: in a store, and among those that a search has fetched from a side index.

A record's key is a digest of the raw text and everything else that its vector depends on. A changed text has another
key, so no score comes from an old text. A text with a record is neither tokenised nor encoded. A model's calibration
and BM25's weight are not part of the key, so records stay valid when these change.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import digest, tokenizer_file, weight_files
from osrerank.scoring.onnx_scorer import PREFERRED
from osrerank.scoring.vectors.background import Background
from osrerank.scoring.vectors.configured import VectorStorage
from osrerank.scoring.vectors.long_record import MAGIC, LongRecord
from osrerank.scoring.vectors.record import EXACT, ROUNDED, Bits, Record, record_bytes
from osrerank.scoring.vectors.store import BYTES, HITS, MISSES, VectorStore
from osrerank.types import LongText, RequestVectors

KEY_BYTES = 16
LONG = b"by passages"
PRECISIONS: dict[Bits, str] = {EXACT: "1.0/32", ROUNDED: "4.0/8"}
"""Bits of each number -> what stands for them in a record's key."""

Kept = Record | LongRecord
"""The record of a text, or of a long text with its passages."""


class Records:
    """Reads and writes the records of documents for one model.

    Args:
        directory: the model's.
        card: the model's.
        hidden: the model's hidden size.
        vectors: where records are kept, and the bits of each number.
    """

    def __init__(self, directory: Path, card: ModelCard, hidden: int, vectors: VectorStorage) -> None:
        self.store, self.bits, self._secret = vectors.store, vectors.bits, vectors.secret
        self.hidden = hidden
        self._directory, self._card = directory, card
        self._writes = Background()

    @functools.cached_property
    def model_key(self) -> bytes:
        """Digest of all that records depend on besides the text, 16 bytes."""
        return model_key_of(self._directory, self._card, self.bits)

    @property
    def most_bytes(self) -> int:
        """How many bytes a text's record takes."""
        return record_bytes(self.bits, self.hidden)

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        """Return the key of each text's record, 16 bytes each."""
        return record_keys(self.model_key, texts)

    def find(
        self, keys: Sequence[bytes], vectors: RequestVectors | None
    ) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:
        """Return the records that the search has fetched, and the other ones that the store has."""
        wanted = list(dict.fromkeys(keys))
        brought = self._read(wanted, vectors) if vectors is not None else {}
        left = [key for key in wanted if key not in brought]
        return brought, self._read(left, self.store) if self.store is not None else {}

    def shared(self, keys: Sequence[bytes], vectors: RequestVectors | None) -> dict[bytes, Kept]:
        """Return the records that the search or the store has, and give the search those from the store."""
        brought, stored = self.find(keys, vectors)
        if vectors is not None:
            self._give(stored, vectors)
        return {**brought, **stored}

    def keep(self, records: Mapping[bytes, Kept], vectors: RequestVectors | None) -> None:
        """Give new records to the search, and write them to the store in the background."""
        if vectors is not None:
            self._give(records, vectors)
        if self.store is not None and records:
            self._writes.submit(functools.partial(self.write, self.store, records))

    def write(self, store: VectorStore, records: Mapping[bytes, Kept]) -> int:
        """Write records to a store, and return how many it took."""
        contents = self.contents(records)
        written = store.write(contents)
        if written:
            BYTES.labels(store.name, "written").inc(sum(map(len, contents.values())))
        return written

    def contents(self, records: Mapping[bytes, Kept]) -> dict[bytes, bytes]:
        """Return records as the bytes to be stored."""
        return {key: record.write(key, self._secret) for key, record in records.items()}

    def read(self, contents: Mapping[bytes, bytes]) -> dict[bytes, Kept]:
        """Return the valid records of this model among stored bytes, by key."""
        read = {key: self._one(key, content) for key, content in contents.items()}
        return {key: record for key, record in read.items() if record and record.fits(self.hidden, self.bits)}

    def flush(self) -> None:
        """Wait until all records are written."""
        self._writes.close()

    def close(self) -> None:
        self.flush()
        if self.store is not None and self.store.name != "file":  # the file is shared by the whole process
            self.store.close()

    def _one(self, key: bytes, content: bytes) -> Kept | None:
        kind: type[Kept] = LongRecord if content[: len(MAGIC)] == MAGIC else Record
        return kind.read(content, key, self._secret)

    def _read(self, keys: Sequence[bytes], store: RequestVectors) -> dict[bytes, Kept]:
        found = store.read(keys) if keys else {}
        records = self.read(found)
        HITS.labels(store.name).inc(len(records))
        MISSES.labels(store.name).inc(len(keys) - len(records))
        BYTES.labels(store.name, "read").inc(sum(map(len, found.values())))
        return records

    def _give(self, records: Mapping[bytes, Kept], vectors: RequestVectors) -> None:
        """Give records to a search that does not have them yet."""
        if records:
            vectors.write(self.contents(records))


def model_key_of(directory: Path, card: ModelCard, bits: Bits) -> bytes:
    """Return a digest of all that a model's records depend on besides the text, 16 bytes.

    It covers weights, pooling, tokenizer, prefix, length and bits, but not backend, device or dtype: a client on a CPU
    reads what a worker on a GPU computed.

    Args:
        directory: the model's.
        card: the model's.
        bits: bits of each stored number.
    """
    parts = (
        weights_digest(directory, card),
        _content(tokenizer_file(directory)),
        "0",  # as 0.2 had it, so that its records stay valid
        card.document_prefix,
        str(card.max_tokens),
        PRECISIONS[bits],
    )
    return _hash("\0".join(parts).encode())


def record_keys(model_key: bytes, texts: Iterable[str | LongText]) -> list[bytes]:
    """Return the keys of texts, 16 bytes each; a long text's key also depends on how it is split into passages."""
    return [
        _hash(model_key + LONG + text.content) if isinstance(text, LongText) else _hash(model_key + _hash(_bytes(text)))
        for text in texts
    ]


def weights_digest(directory: Path, card: ModelCard) -> str:
    """Return the digest of a bi-encoder's weights: the card's, else of its graph, else of its safetensors.

    A graph includes the pooling; to the digest of safetensors it is appended.
    """
    if card.weights:
        return card.weights
    for precision in PREFERRED:
        if precision in card.onnx:
            return _content(directory / card.onnx[precision])
    return f"{digest(directory, weight_files(directory))}/{card.pooling}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
