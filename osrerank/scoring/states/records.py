"""A scorer's records: found in what a search brought and in a store, made known to both.

A record is found by the text before it is tokenised, and everything that its states depend on. A changed text has
another key, so that a state never outlives its text; a known text is neither tokenised nor encoded. A model's query
side (join graph, calibration, weights) is no part of it: a new one leaves the records of old readable.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import tokenizer_file
from osrerank.scoring.states.background import Background
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.long_record import MAGIC, LongRecord
from osrerank.scoring.states.record import Profile, Record, most_bytes
from osrerank.scoring.states.store import BYTES, HITS, MISSES, StateStore
from osrerank.types import LongText, RequestStates

KEY_BYTES = 16
LONG = b"by passages"

Kept = Record | LongRecord
"""Of a text; of a long one."""


class Records:
    """The records of a model's document side.

    Args:
        directory: the model's.
        card: the model's.
        encoder: file of the graph that encodes texts, relative to the directory.
        hidden: the model's width.
        most_rows: pieces of the longest text that the model reads.
        states: where records are kept, and how much of a document.
    """

    def __init__(
        self, directory: Path, card: ModelCard, encoder: str, hidden: int, most_rows: int, states: States
    ) -> None:
        self.store, self.profile, self._secret = states.store, states.profile, states.secret
        self.hidden = hidden
        self._directory, self._card, self._encoder = directory, card, encoder
        self._shape = card.joining.layers, hidden, states.profile, most_rows
        self._writes = Background()

    @functools.cached_property
    def side(self) -> bytes:
        """Identity of the model's document side and profile, 16 bytes: what its records depend on besides the text."""
        return side_of(self._directory, self._card, self.profile, self._encoder)

    @property
    def most_bytes(self) -> int:
        """How many bytes the record of the longest text takes."""
        layers, hidden, profile, most_rows = self._shape
        return most_bytes(profile, layers, hidden, most_rows)

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        """Return the keys of texts' records."""
        return record_keys(self.side, texts)

    def find(self, keys: Sequence[bytes], states: RequestStates | None) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:
        """Return the records that a search brought, and those that it lacks and the store has."""
        wanted = list(dict.fromkeys(keys))
        brought = self._read(wanted, states) if states is not None else {}
        left = [key for key in wanted if key not in brought]
        return brought, self._read(left, self.store) if self.store is not None else {}

    def shared(self, keys: Sequence[bytes], states: RequestStates | None) -> dict[bytes, Kept]:
        """Return the records that a search brought or the store has; the search gets what it lacks."""
        brought, stored = self.find(keys, states)
        if states is not None:
            self._give(stored, states)
        return {**brought, **stored}

    def keep(self, records: Mapping[bytes, Kept], states: RequestStates | None) -> None:
        """Give records to the search that needed them, and write them to the store while nobody waits."""
        if states is not None:
            self._give(records, states)
        if self.store is not None and records:
            self._writes.submit(functools.partial(self.write, self.store, records))

    def write(self, store: StateStore, records: Mapping[bytes, Kept]) -> int:
        """Write records to a store; return how many are kept."""
        contents = self.contents(records)
        written = store.write(contents)
        if written:
            BYTES.labels(store.name, "written").inc(sum(map(len, contents.values())))
        return written

    def contents(self, records: Mapping[bytes, Kept]) -> dict[bytes, bytes]:
        """Return records as they are kept."""
        return {key: record.write(key, self._secret) for key, record in records.items()}

    def read(self, contents: Mapping[bytes, bytes]) -> dict[bytes, Kept]:
        """Return those of some bytes that are this model's records, by key."""
        read = {key: self._one(key, content) for key, content in contents.items()}
        return {key: record for key, record in read.items() if record is not None and record.fits(*self._shape)}

    def flush(self) -> None:
        """Wait for what is being written."""
        self._writes.close()

    def close(self) -> None:
        self.flush()
        if self.store is not None and self.store.name != "file":  # the file is open for all of this process
            self.store.close()

    def _one(self, key: bytes, content: bytes) -> Kept | None:
        kind: type[Kept] = LongRecord if content[: len(MAGIC)] == MAGIC else Record
        return kind.read(content, key, self._secret)

    def _read(self, keys: Sequence[bytes], store: RequestStates) -> dict[bytes, Kept]:
        found = store.read(keys) if keys else {}
        records = self.read(found)
        HITS.labels(store.name).inc(len(records))
        MISSES.labels(store.name).inc(len(keys) - len(records))
        BYTES.labels(store.name, "read").inc(sum(map(len, found.values())))
        return records

    def _give(self, records: Mapping[bytes, Kept], states: RequestStates) -> None:
        """Give records to a search that lacks them."""
        if records:
            states.write(self.contents(records))


def side_of(directory: Path, card: ModelCard, profile: Profile, encoder: str) -> bytes:
    """Return the identity of a model's document side, 16 bytes.

    Args:
        directory: the model's.
        card: the model's.
        profile: how much is kept.
        encoder: file of the graph that encodes texts, relative to the directory.
    """
    joining = card.joining
    parts = (
        *(_content(file) for file in (directory / encoder, tokenizer_file(directory))),
        str(joining.layers),
        joining.document_prefix,
        str(card.max_tokens),
        f"{profile.factor}/{profile.bits}",
    )
    return _hash("\0".join(parts).encode())


def record_keys(side: bytes, texts: Iterable[str | LongText]) -> list[bytes]:
    """Return the keys of texts, 16 bytes each; that of a long one depends on how it is cut, too."""
    return [
        _hash(side + LONG + text.content) if isinstance(text, LongText) else _hash(side + _hash(_bytes(text)))
        for text in texts
    ]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
