"""An open index: its row in the store, its fields and analyzers, and the tantivy index that searches it.

Documents are stored first, and then fed to the search index, which commits them at a refresh.
"""

import contextlib
import json
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tantivy

from osrerank.embedded.analysis.analyzers import Analyzers
from osrerank.embedded.analysis.tokens import Analyzer
from osrerank.embedded.errors import Fault
from osrerank.embedded.mapping.fields import Field, IndexFields
from osrerank.embedded.storage.shard import PRESENT, TANTIVY_ERRORS, CheckedSearcher, Shard, translate_tantivy_errors
from osrerank.embedded.storage.store import IndexRow, SqliteStore, StoredDocument, storage_fault

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An index as it was at its last refresh, for searches."""

    row: IndexRow
    fields: IndexFields
    analyzers: Analyzers
    shard: Shard
    searcher: CheckedSearcher

    @property
    def name(self) -> str:
        return self.row.name

    def analyzer(self, field: Field) -> Analyzer:
        """Return a text field's analyzer."""
        return field_analyzer(self.analyzers, field)

    def count_documents(self, token: str) -> int:
        """Return the number of documents with a token in `PRESENT`: a field's path, or `ALL_DOCUMENTS`.

        Deleted documents count until tantivy merges their segments, as in Lucene's BM25.
        """
        return int(self.searcher.doc_freq(PRESENT, token))

    def document_frequency(self, path: str, term: str) -> int:
        """Return the number of documents with a term in a field."""
        return int(self.searcher.doc_freq(self.shard.columns[path], term)) if path in self.shard.columns else 0


def field_analyzer(analyzers: Analyzers, field: Field) -> Analyzer:
    """Return the analyzer of a text field."""
    return analyzers.get(field.body.get("analyzer", "standard"))


def build_layout(fields: IndexFields) -> dict[str, str]:
    """Return field path -> column type, for the search index of these fields."""
    return {path: field.column for path, field in sorted(fields.by_path.items()) if field.is_indexed}


def check_mappings(mappings: dict[str, Any], settings: dict[str, Any]) -> tuple[IndexFields, Analyzers]:
    """Return the fields and analyzers of an index; raise the fault if one is invalid or missing."""
    fields, analyzers = IndexFields(mappings), Analyzers(settings.get("analysis"))
    for field in fields.by_path.values():
        if field.column == "text":
            field_analyzer(analyzers, field)
    return fields, analyzers


class LiveIndex:
    """An open index. Methods that write need the engine's write lock; methods that read do not.

    Attributes:
        last_seq: the highest sequence number of a stored document.
        dirty_since: the monotonic time of the first change since the last refresh, in seconds. None without changes.
    """

    def __init__(self, store: SqliteStore, row: IndexRow) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._row = row
        self.fields, self.analyzers = check_mappings(row.mappings, row.settings)
        self._shard: Shard | None = None
        self._loaded: tuple[int, int] = (0, 0)  # the generation and indexed_seq that the shard has loaded
        self._fed_seq = row.indexed_seq  # the last document that the shard's writer received
        self.last_seq = store.last_seq(row)
        self.dirty_since: float | None = None

    @property
    def row(self) -> IndexRow:
        return self._row

    def sync(self) -> None:
        """Update the row, fields and analyzers from the store."""
        with self._lock:  # before the store's lock, here and everywhere
            row = self._store.indices().get(self._row.name)
            if row is None or row.id != self._row.id:
                return
            if row.mappings != self._row.mappings or row.settings != self._row.settings:
                self.fields, self.analyzers = check_mappings(row.mappings, row.settings)
            self._row = row

    def load_foreign_writes(self) -> None:
        """Read what other processes wrote before this one became the writer."""
        self.last_seq = self._store.last_seq(self._row)
        self._fed_seq = self._row.indexed_seq
        if self.last_seq > self._row.indexed_seq:
            self.dirty_since = -math.inf  # so that a refresh is due

    def snapshot(self) -> Snapshot:
        """Return the index as it was at its last refresh.

        Raises:
            Fault: 500 if its files are damaged.
        """
        with translate_tantivy_errors(self.folder):
            return self._snapshot()

    def _snapshot(self) -> Snapshot:
        with self._lock:
            while self._shard is None or self._loaded != (self._row.generation, self._row.indexed_seq):
                generation = self._row.generation
                try:
                    self._load(self._row)
                except TANTIVY_ERRORS:
                    self.sync()
                    if self._row.generation == generation:
                        raise  # damaged; otherwise another process has just rebuilt it
            return Snapshot(self._row, self.fields, self.analyzers, self._shard, self._shard.searcher)

    def _load(self, row: IndexRow) -> None:
        if self._shard is not None and self._shard.folder is not None and self._loaded[0] == row.generation:
            self._shard.reload()
        else:
            self._shard = self._open_shard(row)
        self._loaded = (row.generation, row.indexed_seq)

    def _open_shard(self, row: IndexRow) -> Shard:
        """Return the search index on disk, or an empty one in memory before the first write."""
        if self._store.read_only:
            return self._build_in_memory(row)
        folder = self._folder(row)
        if not (folder / "meta.json").exists():
            if row.indexed_seq:
                raise FileNotFoundError(f"{folder / 'meta.json'} is missing")
            return Shard(None, row.layout)
        return Shard(folder, row.layout)

    def _build_in_memory(self, row: IndexRow) -> Shard:
        """Build the search index in memory, for a read-only folder, because tantivy writes lock files even to read."""
        shard = Shard(None, build_layout(self.fields))
        shard.open_writer()
        for rows in self._store.read_since(row, 0):
            self._feed(shard, rows, replay=False)
        shard.commit()
        shard.close_writer()
        shard.reload()
        return shard

    @property
    def is_usable(self) -> bool:
        """Whether the search index can be opened and has all documents that the store records as indexed."""
        try:
            self._snapshot()
        except TANTIVY_ERRORS as error:
            logger.warning("the search index of [%s] is damaged (%s)", self._row.name, error)
            return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether the store has documents that the search index has not committed."""
        return self._store.last_seq(self._row) > self._row.indexed_seq

    def record_stored(self, rows: Sequence[StoredDocument]) -> None:
        """Update ``last_seq`` and ``dirty_since`` after documents were stored."""
        self.last_seq = rows[-1].seq
        self.dirty_since = self.dirty_since or time.monotonic()

    def feed(self, rows: Sequence[StoredDocument]) -> None:
        """Add newly stored documents to the search index, without committing them.

        If the search index lacks fields or earlier documents, all are left to the next refresh.
        """
        if self._fed_seq == rows[0].seq - 1 and self._row.layout == build_layout(self.fields):
            with self._writing() as shard:
                self._feed(shard, rows, replay=False)

    def _feed(self, shard: Shard, rows: Sequence[StoredDocument], *, replay: bool) -> None:
        """Add stored documents to a search index; with ``replay``, it might already contain some of them."""
        shard.delete(row.doc_id for row in rows if replay or row.version > 1)
        analyzers = {
            path: field_analyzer(self.analyzers, field)
            for path, field in self.fields.by_path.items()
            if field.column == "text"
        }
        latest = {row.doc_id: row.seq for row in rows}
        for row in rows:
            if row.source is not None and latest[row.doc_id] == row.seq:
                document = self._document(shard, row, row.source, analyzers.__getitem__)
                if document is not None:
                    shard.add(document)
        self._fed_seq = rows[-1].seq

    def _document(
        self, shard: Shard, row: StoredDocument, text: str, analyzer: Callable[[str], Analyzer]
    ) -> tantivy.Document | None:
        """Return a document for the search index; log it and return None if it cannot be indexed.

        Writes refuse such documents. If one is in the store nevertheless, the others can still be searched.
        """
        try:
            return shard.document(row, self.fields.extract(json.loads(text)), analyzer)
        except (Fault, ValueError, TypeError, OverflowError, RecursionError) as error:
            logger.warning("document [%s] of [%s] cannot be searched: %s", row.doc_id, self._row.name, error)
            return None

    def refresh(self) -> None:
        """Make all stored documents visible to searches."""
        if self._row.layout != build_layout(self.fields):
            self.rebuild()
            return
        if self.last_seq == self._row.indexed_seq:
            self.dirty_since = None
            return
        with self._writing() as shard:
            for rows in self._store.read_since(self._row, self._fed_seq):
                self._feed(shard, rows, replay=True)
            shard.commit()
        self._record_commit(indexed_seq=self._fed_seq)

    def rebuild(self) -> None:
        """Rebuild the search index from the store: after new fields, or when its files are damaged."""
        old = self._row
        generation = old.generation + 1
        layout = build_layout(self.fields)
        folder = self._folder(old, generation)
        shutil.rmtree(folder, ignore_errors=True)
        with translate_tantivy_errors(folder):
            shard = Shard(folder, layout)
        try:
            shard.open_writer()
            self._fed_seq = 0
            for rows in self._store.read_since(old, 0):
                self._feed(shard, rows, replay=False)
            shard.commit()
            shard.reload()
        except TANTIVY_ERRORS as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise storage_fault(self._store.folder, str(error)) from error
        self.close_writer()
        with self._lock:
            self._record_commit(layout=layout, generation=generation, indexed_seq=max(self._fed_seq, self.last_seq))
            self._shard, self._loaded = shard, (generation, self._row.indexed_seq)
        shutil.rmtree(self._folder(old), ignore_errors=True)

    def _record_commit(self, **changes: Any) -> None:
        """Record a commit of the search index in the store, and drop the rows of deleted documents."""
        with self._store.transaction():
            row = self._store.update(self._row, **changes)
            self._store.forget_deleted(row, row.indexed_seq)
        self.sync()
        self._fed_seq = row.indexed_seq
        self.dirty_since = None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Shard]:
        """Yield the search index with an open writer; after an error, the next writer starts at the last commit."""
        shard: Shard | None = None
        try:
            shard = self._on_disk()
            if not shard.has_writer:
                shard.open_writer()
                self._fed_seq = self._row.indexed_seq
            yield shard
        except TANTIVY_ERRORS as error:
            if shard is not None:
                shard.close_writer(wait=False)
            self._fed_seq = self._row.indexed_seq
            raise storage_fault(self._store.folder, str(error)) from error

    def _on_disk(self) -> Shard:
        """Return the search index on disk; create it if it does not exist."""
        with self._lock:
            shard = self._snapshot().shard
            if shard.folder is None:
                shard = self._shard = Shard(self._folder(self._row), self._row.layout)
            return shard

    def close_writer(self, *, wait: bool = True) -> None:
        """Close the search index's writer; the next one reads uncommitted documents from the store."""
        if self._shard is not None and self._shard.has_writer:
            self._shard.close_writer(wait=wait)
            self._fed_seq = self._row.indexed_seq

    @property
    def has_writer(self) -> bool:
        """Whether the search index's writer is open."""
        return self._shard is not None and self._shard.has_writer

    def _folder(self, row: IndexRow, generation: int | None = None) -> Path:
        return self._store.folder / f"index-{row.id}" / f"generation-{generation or row.generation}"

    @property
    def folder(self) -> Path:
        """The folder of the index's search files."""
        return self._store.folder / f"index-{self._row.id}"
