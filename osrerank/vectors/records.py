"""Read and write a model's records: in a store, and among those that a search fetched from a side index.

A record's key is a digest of the raw text and everything else that its vector depends on. A changed text has another
key, so no score comes from an old text. A text with a record is neither tokenised nor encoded. A model's calibration
and BM25's weight are not part of the key, so records stay valid when these change.
"""

import copy
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from osrerank.types import Candidate, LongText, Ranking
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
        fetched: records that a search fetched (`with_fetched`): read first; new ones are added.
    """

    def __init__(self, key: str, dimensions: int, storage: VectorStorage, *, by_tokens: bool = False) -> None:
        self.store, self.bits, self._secret = storage.store, storage.bits, storage.secret
        self.fetched: FetchedVectors | None = None
        self._dimensions, self._by_tokens = dimensions, by_tokens
        self.model_key = _hash(f"{key}\0{self.bits}".encode())
        self._writes = Background()

    def with_fetched(self, fetched: "FetchedVectors") -> "Records":
        """Return a copy for one search, which also reads the fetched records."""
        bound = copy.copy(self)
        bound.fetched = fetched
        return bound

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        """Return the key of each text's record, 16 bytes each; a long text's also depends on how it is split."""
        made = {} if self.fetched is None else self.fetched.keys
        return [made.get(text) or made.setdefault(text, _hash(self.model_key + _content(text))) for text in texts]

    def known(self, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the records that the search fetched or the store has, by key; also store the fetched ones."""
        left, fetched, store = list(dict.fromkeys(keys)), self.fetched, self.store
        if fetched is None:
            return self.read_from(store, left) if store is not None else {}
        brought = self.read_from(fetched, [key for key in left if key not in fetched.known])
        if brought and store is not None:
            self._writes.submit(functools.partial(self.write, store, brought))
        fetched.known |= brought
        if store is not None and (left_over := [key for key in left if key not in fetched.known]):
            fetched.known |= self.read_from(store, left_over)
        return {key: fetched.known[key] for key in left if key in fetched.known}

    def keep(self, records: Mapping[bytes, Kept]) -> None:
        """Add new records to the search's, and write them to the store in the background."""
        if self.fetched is not None:
            self.fetched.write(self.contents(records))
        if self.store is not None:
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

    def read_from(self, store: "VectorStore | FetchedVectors", keys: Sequence[bytes]) -> dict[bytes, Kept]:
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


class FetchedVectors:
    """The records that a search read before reranking; it also collects the new ones.

    Args:
        records: from side indices, by key.

    Attributes:
        known: records that were read, by key; no record is read twice.
        keys: text -> key of its record; no text is hashed twice.
        texts: id of a candidate -> the candidate, and the text whose vectors it needs; none is prepared twice.
        new: records made for the search, as bytes.
    """

    name = "index"

    def __init__(self, records: Mapping[bytes, bytes] = NOTHING) -> None:
        self._records = dict(records)
        self.known: dict[bytes, Kept] = {}
        self.keys: dict[str | LongText, bytes] = {}
        self.texts: dict[int, tuple[Candidate, str | LongText]] = {}
        self.new: dict[bytes, bytes] = {}

    def bring(self, records: Mapping[bytes, bytes]) -> None:
        """Add records read from side indices."""
        self._records |= records

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return those of the records that it has, by key."""
        return {key: self._records[key] for key in keys if key in self._records}

    def write(self, records: Mapping[bytes, bytes]) -> int:
        """Add new records; return how many were added."""
        self._records |= records
        self.new = {**self.new, **records}  # a new dict: the old one may be being written to a side index
        return len(records)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The vectors that a search needs: those that are known on this machine, and the keys of the others.

    Attributes:
        lacking: key of each vector that is not known -> the index of its document.
        fetched: the vectors that are known.
        model: label of the vectors' model.
        rankings: the first pass, read once for each ranking that the search needs; may be empty.
    """

    lacking: Mapping[bytes, str] = field(default_factory=dict)
    fetched: FetchedVectors = field(default_factory=FetchedVectors)
    model: str = ""
    rankings: tuple[Ranking, ...] = ()
