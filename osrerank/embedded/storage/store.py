"""The engine's durable store: a SQLite file with the indices, aliases and documents of a folder.

A write gets its response when its transaction is on disk (write-ahead log, ``synchronous=FULL``). Each write of a
document gets the next sequence number of its index. A deleted document's row stays, without a source, until the search
index has removed the document.
"""

# ruff: noqa: S608 - table names end in the integer id of an index

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from osrerank.embedded.errors import ApiError, Json

FORMAT = 2
"""The version of the file format. A folder with another version cannot be opened."""
FILE_NAME = "store.sqlite"
BATCH_SIZE = 1000
"""The number of rows that `SqliteStore.read_since` reads at a time."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS indices (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, uuid TEXT NOT NULL, created_ms INTEGER NOT NULL,
  mappings TEXT NOT NULL, settings TEXT NOT NULL, layout TEXT NOT NULL, generation INTEGER NOT NULL,
  indexed_seq INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS aliases (
  alias TEXT NOT NULL, index_id INTEGER NOT NULL, PRIMARY KEY (alias, index_id)
);
"""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """An index's row in the store.

    Attributes:
        layout: the type of each field's column in the search index, such as ``{"title": "text"}``.
        generation: how many times the search index has been built.
        indexed_seq: the sequence number of the last document that the search index has committed.
    """

    id: int
    name: str
    uuid: str
    created_ms: int
    mappings: Json
    settings: Json
    layout: Mapping[str, str]
    generation: int
    indexed_seq: int

    @property
    def is_hidden(self) -> bool:
        """Whether patterns such as ``*`` skip the index."""
        return str(self.settings.get("index", {}).get("hidden", False)).lower() == "true"


class StoredDocument(NamedTuple):
    """A document's row in the store. ``source`` is its JSON text, or None after a deletion."""

    seq: int
    doc_id: str
    version: int
    source: str | None

    @property
    def seq_no(self) -> int:
        """The sequence number in responses. Those count from 0, and the store from 1."""
        return self.seq - 1


class SqliteStore:
    """The SQLite file of a folder. Threads can share it.

    Raises:
        ApiError: the folder cannot be written (403), the disk is full (429), the file is damaged or of another version
            (500).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        with self._translate_errors():
            self._db, self.read_only = _open_database(folder)
            self._create_tables()
            self._check_format()
        self._indices: dict[str, IndexRow] = {}
        self._aliases: dict[str, set[int]] = {}
        self._change_count = 0  # of this process
        self._loaded_version: tuple[int, int] | None = None  # SQLite's data_version and the change count

    def close(self) -> None:
        with self.lock:
            self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the changes in the block as one transaction. An exception undoes them."""
        with self.lock, self._translate_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.rollback()
                raise
            self._db.commit()

    def indices(self) -> dict[str, IndexRow]:
        """Return the indices by name, as of the last transaction of any process."""
        with self.lock, self._translate_errors():
            self._reload()
            return self._indices

    def aliases(self) -> dict[str, set[int]]:
        """Return the ids of the indices that each alias stands for, such as ``{"news": {1, 4}}``."""
        with self.lock, self._translate_errors():
            self._reload()
            return self._aliases

    # The methods that change the store, from `create` to `forget_deleted`, must be called in a `transaction`.

    def create(self, name: str, mappings: Json, settings: Json, layout: Mapping[str, str]) -> IndexRow:
        """Add an index."""
        uuid = uuid4().hex[:22]  # as long as OpenSearch's
        values = (name, uuid, int(time.time() * 1000), *map(json.dumps, (mappings, settings, layout)))
        cursor = self._db.execute(
            "INSERT INTO indices (name, uuid, created_ms, mappings, settings, layout, generation, indexed_seq)"
            " VALUES (?, ?, ?, ?, ?, ?, 1, 0)",
            values,
        )
        assert cursor.lastrowid is not None
        self._db.execute(
            f"CREATE TABLE docs_{cursor.lastrowid:d}"
            " (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, source TEXT)"
        )
        self._change_count += 1
        return self.indices()[name]

    def drop(self, index: IndexRow) -> None:
        """Remove an index with its documents and aliases."""
        self._db.execute(f"DROP TABLE docs_{index.id:d}")
        self._db.execute("DELETE FROM aliases WHERE index_id = ?", (index.id,))
        self._db.execute("DELETE FROM indices WHERE id = ?", (index.id,))
        self._change_count += 1

    def update(self, index: IndexRow, **changes: Any) -> IndexRow:
        """Change an index's row, and return the new row."""
        row = replace(index, **changes)
        self._db.execute(
            "UPDATE indices SET mappings = ?, settings = ?, layout = ?, generation = ?, indexed_seq = ? WHERE id = ?",
            (*map(json.dumps, (row.mappings, row.settings, row.layout)), row.generation, row.indexed_seq, row.id),
        )
        self._change_count += 1
        return row

    def put_alias(self, alias: str, index: IndexRow) -> None:
        """Add an index to an alias, which is created if it does not exist."""
        self._db.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", (alias, index.id))
        self._change_count += 1

    def drop_alias(self, alias: str, index: IndexRow) -> None:
        """Remove an index from an alias."""
        self._db.execute("DELETE FROM aliases WHERE alias = ? AND index_id = ?", (alias, index.id))
        self._change_count += 1

    def put(self, index: IndexRow, rows: Iterable[StoredDocument]) -> None:
        """Write documents. Each replaces an earlier document with the same id."""
        self._db.executemany(
            # Only the id may exist already. An existing sequence number would replace another document.
            f"INSERT INTO docs_{index.id:d} (seq, id, version, source) VALUES (?, ?, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET seq = excluded.seq, version = excluded.version, source = excluded.source",
            rows,
        )

    def forget_deleted(self, index: IndexRow, up_to: int) -> None:
        """Drop the rows of deleted documents up to a sequence number, because the search index has removed them."""
        self._db.execute(f"DELETE FROM docs_{index.id:d} WHERE source IS NULL AND seq <= ?", (up_to,))

    def get(self, index: IndexRow, doc_id: str) -> StoredDocument | None:
        """Return a document's latest row, even after a deletion. Returns None if it has no row."""
        with self.lock, self._translate_errors():
            query = f"SELECT seq, id, version, source FROM docs_{index.id:d} WHERE id = ?"
            row = self._db.execute(query, (doc_id,)).fetchone()
            return StoredDocument(*row) if row else None

    def last_seq(self, index: IndexRow) -> int:
        """Return the sequence number of an index's last write, or 0 before the first write."""
        with self.lock, self._translate_errors():
            highest = self._db.execute(f"SELECT max(seq) FROM docs_{index.id:d}").fetchone()[0]
            return max(highest or 0, index.indexed_seq)  # `forget_deleted` can have dropped the row of the last write

    def read_since(self, index: IndexRow, seq: int) -> Iterator[list[StoredDocument]]:
        """Yield the documents after a sequence number in ascending order, in batches."""
        table = f"docs_{index.id:d}"
        query = f"SELECT seq, id, version, source FROM {table} WHERE seq > ? ORDER BY seq LIMIT {BATCH_SIZE:d}"
        while True:
            with self.lock, self._translate_errors():
                rows = [StoredDocument(*row) for row in self._db.execute(query, (seq,))]
            if not rows:
                return
            yield rows
            seq = rows[-1].seq

    def _create_tables(self) -> None:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            # another process can do the same meanwhile
            self._db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} INSERT OR IGNORE INTO meta VALUES ('format', '{FORMAT}'); COMMIT;"
            )

    def _check_format(self) -> None:
        version = int(self._db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()[0])
        if version != FORMAT:
            self._db.close()
            if version > FORMAT:
                kind, writer = "index_format_too_new_exception", "a later osrerank"
                fix = "upgrade osrerank, or index into another folder"
            else:
                kind, writer = "index_format_too_old_exception", "an earlier osrerank"
                fix = "delete the folder and index again"
            reason = f"the folder {self.folder} was written by {writer} (format {version}, not {FORMAT}): {fix}"
            raise ApiError(500, kind, reason)

    def _reload(self) -> None:
        """Read the indices and aliases again if this or another process has changed them."""
        version = (int(self._db.execute("PRAGMA data_version").fetchone()[0]), self._change_count)
        if version == self._loaded_version:
            return
        rows = self._db.execute(
            "SELECT id, name, uuid, created_ms, mappings, settings, layout, generation, indexed_seq FROM indices"
        )
        indices: dict[str, IndexRow] = {}
        for index_id, name, uuid, created_ms, mappings, settings, layout, generation, indexed_seq in rows:
            indices[name] = IndexRow(
                id=index_id,
                name=name,
                uuid=uuid,
                created_ms=created_ms,
                mappings=json.loads(mappings),
                settings=json.loads(settings),
                layout=json.loads(layout),
                generation=generation,
                indexed_seq=indexed_seq,
            )
        aliases: dict[str, set[int]] = {}
        for alias, index_id in self._db.execute("SELECT alias, index_id FROM aliases"):
            aliases.setdefault(alias, set()).add(index_id)
        self._indices, self._aliases = indices, aliases
        # An open transaction can still be undone. In that case, the next call must read again.
        self._loaded_version = None if self._db.in_transaction else version

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise storage_error(self.folder, str(error)) from error


def storage_error(folder: Path, message: str) -> ApiError:
    """Return the `ApiError` for a message about the disk, the folder's permissions or the files in it."""
    lower = message.lower()
    disk_messages = (
        "is full",
        "disk i/o error",
        "no space",
        "file too large",
        "os error 28",  # ENOSPC
        "os error 27",  # EFBIG
    )
    if any(part in lower for part in disk_messages):
        reason = f"the disk of the embedded folder {folder} is full or failing ({message}): free space and try again"
        return ApiError(429, "cluster_block_exception", reason)
    if any(part in lower for part in ("readonly", "read-only", "unable to open", "permission denied")):
        fix = "check its permissions, or use another folder"
        reason = f"the embedded folder {folder} cannot be written ({message}): {fix}"
        return ApiError(403, "cluster_block_exception", reason)
    if any(part in lower for part in ("malformed", "not a database")):
        fix = "restore it from a backup, or delete the folder and index again"
        reason = f"{folder / FILE_NAME} is damaged ({message}): {fix}"
        return ApiError(500, "corrupt_index_exception", reason)
    if "locked" in lower:
        reason = f"the embedded folder {folder} is being written by another process ({message}): try again"
        return ApiError(503, "lock_obtain_failed_exception", reason)
    return ApiError(500, "storage_exception", f"the embedded folder {folder}: {message}")


def _open_database(folder: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the SQLite file for writing, or else for reading. Return the connection, and whether it is read-only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(folder, f"unable to open: {error.strerror}") from error
    path = folder / FILE_NAME
    try:
        db = _connect(path.resolve().as_uri())
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")  # fails if the file or folder is read-only
        db.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        is_unwritable = "readonly" in str(error) or "unable to open" in str(error)
        if not is_unwritable or not path.exists():
            raise
        return _connect(f"{path.resolve().as_uri()}?immutable=1"), True
    return db, False


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
