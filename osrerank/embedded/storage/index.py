"""An index that the engine has open: its row in the store, its fields and analyzers, and its search index (a `Shard`).

A write first goes to the store, and is then added to the search index, which commits it at the next refresh.
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
from osrerank.embedded.errors import ApiError
from osrerank.embedded.mapping.fields import IndexFields
from osrerank.embedded.storage.shard import (
    FIELD_NAMES,
    PART_SEPARATOR,
    TANTIVY_ERRORS,
    CheckedSearcher,
    Shard,
    TermFrequency,
    translate_tantivy_errors,
)
from osrerank.embedded.storage.store import IndexRow, SqliteStore, StoredDocument, storage_error

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An index as it was at its last refresh. Searches see this state."""

    row: IndexRow
    fields: IndexFields
    analyzers: Analyzers
    shard: Shard
    searcher: CheckedSearcher

    @property
    def name(self) -> str:
        return self.row.name

    def count_documents(self, path: str) -> int:
        """Return the number of documents that have a field, or of all documents if ``path`` is `ALL_DOCUMENTS`.

        Deleted documents count until tantivy merges their segments, as in Lucene's BM25.
        """
        return int(self.searcher.doc_freq(FIELD_NAMES, path))

    def document_frequency(self, path: str, term: str) -> int:
        """Return the number of documents with a term in a field."""
        if path not in self.shard.columns:
            return 0
        return int(self.searcher.doc_freq(self.shard.columns[path], term))

    def term_frequencies(self, path: str, term: str) -> Iterator[TermFrequency]:
        """Yield how often documents contain a term, such as: 3 documents have it twice in a field of 10 terms."""
        prefix = term + PART_SEPARATOR
        for token, n_documents in self.searcher.terms_with_prefix(self.shard.frequency_columns[path], prefix):
            frequency, length = map(int, token.removeprefix(prefix).split(PART_SEPARATOR))
            yield TermFrequency(token, frequency, length, n_documents)


def build_layout(fields: IndexFields) -> dict[str, str]:
    """Return the layout of a search index: the type of each field's column, such as ``{"title": "text"}``."""
    return {path: field.column for path, field in sorted(fields.by_path.items()) if field.is_indexed}


def check_mappings(mappings: dict[str, Any], settings: dict[str, Any]) -> tuple[IndexFields, Analyzers]:
    """Return the fields and analyzers of an index. Raise an `ApiError` if one is invalid or missing."""
    fields, analyzers = IndexFields(mappings), Analyzers(settings.get("analysis"))
    for field in fields.by_path.values():
        if field.column == "text":
            analyzers.get(field.analyzer_name)
    return fields, analyzers


class LiveIndex:
    """An index that the engine has open. The caller of a method that writes must hold the engine's write lock.

    Attributes:
        row: the index's row in the store.
        last_seq: the highest sequence number of a stored document.
        unrefreshed_since: the time of the first change since the last refresh, in seconds of the monotonic clock. None
            if nothing has changed.
    """

    def __init__(self, store: SqliteStore, row: IndexRow) -> None:
        self._store = store
        self._lock = threading.RLock()
        self.row = row
        self.fields, self.analyzers = check_mappings(row.mappings, row.settings)
        self._shard: Shard | None = None
        self._loaded_generation = 0  # the row's generation when the shard was loaded
        self._loaded_seq = 0  # the row's indexed_seq when the shard was loaded
        self._added_seq = row.indexed_seq  # the sequence number of the last document that the shard's writer received
        self.last_seq = store.last_seq(row)
        self.unrefreshed_since: float | None = None

    def sync(self) -> None:
        """Update the row, fields and analyzers from the store."""
        with self._lock:  # take this lock before the store's lock, here and everywhere
            row = self._store.indices().get(self.row.name)
            if row is None or row.id != self.row.id:
                return
            if row.mappings != self.row.mappings or row.settings != self.row.settings:
                self.fields, self.analyzers = check_mappings(row.mappings, row.settings)
            self.row = row

    def load_external_writes(self) -> None:
        """Note what other processes have written before this process got the folder lock."""
        self.last_seq = self._store.last_seq(self.row)
        self._added_seq = self.row.indexed_seq
        if self.last_seq > self.row.indexed_seq:
            self.unrefreshed_since = -math.inf  # the next check refreshes the index

    def snapshot(self) -> Snapshot:
        """Return the index as it was at its last refresh.

        Raises:
            ApiError: 500 if the index's files are damaged.
        """
        with translate_tantivy_errors(self.folder):
            return self._load_snapshot()

    def _load_snapshot(self) -> Snapshot:
        with self._lock:
            while self._shard is None or not self._is_up_to_date():
                tried_generation = self.row.generation
                try:
                    self._load_shard(self.row)
                except TANTIVY_ERRORS:
                    self.sync()
                    if self.row.generation == tried_generation:  # otherwise another process has just rebuilt it
                        raise
            return Snapshot(self.row, self.fields, self.analyzers, self._shard, self._shard.searcher)

    def _is_up_to_date(self) -> bool:
        return (self._loaded_generation, self._loaded_seq) == (self.row.generation, self.row.indexed_seq)

    def _load_shard(self, row: IndexRow) -> None:
        # A search index in memory has no folder, and cannot be reloaded from it.
        if self._shard is not None and self._shard.folder is not None and self._loaded_generation == row.generation:
            self._shard.reload()
        else:
            self._shard = self._open_shard(row)
        self._loaded_generation, self._loaded_seq = row.generation, row.indexed_seq

    def _open_shard(self, row: IndexRow) -> Shard:
        """Open the search index on disk. Before the first write, return an empty search index in memory."""
        if self._store.read_only:
            return self._build_in_memory(row)
        folder = self._generation_folder(row)
        if (folder / "meta.json").exists():
            return Shard(folder, row.layout)
        if row.indexed_seq:
            raise FileNotFoundError(f"{folder / 'meta.json'} is missing")
        return Shard(None, row.layout)

    def _build_in_memory(self, row: IndexRow) -> Shard:
        """Build the search index of a read-only folder in memory, because tantivy writes lock files even to read."""
        shard = Shard(None, build_layout(self.fields))
        shard.open_writer()
        for rows in self._store.read_since(row, 0):
            self._add_to_shard(shard, rows)
        shard.commit()
        shard.close_writer()
        shard.reload()
        return shard

    @property
    def is_usable(self) -> bool:
        """Whether the search index can be opened. If its files are damaged, this logs a warning."""
        try:
            self._load_snapshot()
        except TANTIVY_ERRORS as error:
            logger.warning("the search index of [%s] is damaged (%s)", self.row.name, error)
            return False
        return True

    @property
    def has_uncommitted_documents(self) -> bool:
        """Whether the store has documents that the search index has not committed."""
        return self._store.last_seq(self.row) > self.row.indexed_seq

    def mark_changed(self) -> None:
        """Set ``unrefreshed_since``, unless there are earlier changes."""
        self.unrefreshed_since = self.unrefreshed_since or time.monotonic()

    def record_stored(self, rows: Sequence[StoredDocument]) -> None:
        """Update ``last_seq`` and ``unrefreshed_since`` after documents were stored."""
        self.last_seq = rows[-1].seq
        self.mark_changed()

    def add_documents(self, rows: Sequence[StoredDocument]) -> None:
        """Add newly stored documents to the search index, without committing them.

        If the search index does not have all fields or all earlier documents, the next refresh adds these documents.
        """
        has_earlier_documents = self._added_seq == rows[0].seq - 1
        if has_earlier_documents and self.row.layout == build_layout(self.fields):
            with self._use_writer() as shard:
                self._add_to_shard(shard, rows)

    def _add_to_shard(self, shard: Shard, rows: Sequence[StoredDocument], *, may_have_rows: bool = False) -> None:
        """Write stored documents to a search index. A document without a source is only deleted from it.

        Args:
            shard: the search index.
            rows: the documents, in the order of their sequence numbers.
            may_have_rows: whether the search index might already contain some of these rows, which are then replaced.
        """
        shard.delete(row.doc_id for row in rows if may_have_rows or row.version > 1)  # version 1 replaces nothing
        analyzers = {
            path: self.analyzers.get(field.analyzer_name)
            for path, field in self.fields.by_path.items()
            if field.column == "text"
        }
        latest_seqs = {row.doc_id: row.seq for row in rows}  # an id can have several rows, of which the last one counts
        for row in rows:
            if row.source is not None and latest_seqs[row.doc_id] == row.seq:
                document = self._build_document(shard, row, row.source, analyzers.__getitem__)
                if document is not None:
                    shard.add(document)
        self._added_seq = rows[-1].seq

    def _build_document(
        self, shard: Shard, row: StoredDocument, source: str, get_analyzer: Callable[[str], Analyzer]
    ) -> tantivy.Document | None:
        """Convert a document for the search index. If it cannot be indexed, log a warning and return None.

        A write refuses such a document. If the store contains one nevertheless, the others can still be searched.
        """
        try:
            return shard.build_document(row, self.fields.extract(json.loads(source)), get_analyzer)
        except (ApiError, ValueError, TypeError, OverflowError, RecursionError) as error:
            logger.warning("document [%s] of [%s] cannot be searched: %s", row.doc_id, self.row.name, error)
            return None

    def refresh(self) -> None:
        """Make all stored documents visible to searches."""
        if self.row.layout != build_layout(self.fields):
            self.rebuild()
            return
        if self.last_seq == self.row.indexed_seq:
            self.unrefreshed_since = None
            return
        with self._use_writer() as shard:
            for rows in self._store.read_since(self.row, self._added_seq):
                self._add_to_shard(shard, rows, may_have_rows=True)
            shard.commit()
        self._record_commit(indexed_seq=self._added_seq)

    def rebuild(self) -> None:
        """Rebuild the search index from the store, because fields were added or its files are damaged."""
        old_row = self.row
        generation = old_row.generation + 1
        layout = build_layout(self.fields)
        folder = self._generation_folder(old_row, generation)
        shutil.rmtree(folder, ignore_errors=True)
        with translate_tantivy_errors(folder):
            shard = Shard(folder, layout)
        try:
            shard.open_writer()
            self._added_seq = 0
            for rows in self._store.read_since(old_row, 0):
                self._add_to_shard(shard, rows)
            shard.commit()
            shard.reload()
        except TANTIVY_ERRORS as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise storage_error(self._store.folder, str(error)) from error
        self.close_writer()
        with self._lock:
            # The sequence number must not fall. If the store has no rows left, _added_seq is 0.
            self._record_commit(layout=layout, generation=generation, indexed_seq=max(self._added_seq, self.last_seq))
            self._shard, self._loaded_generation, self._loaded_seq = shard, generation, self.row.indexed_seq
        shutil.rmtree(self._generation_folder(old_row), ignore_errors=True)

    def _record_commit(self, **changes: Any) -> None:
        """Note in the store what the search index has committed, and drop the rows of deleted documents."""
        with self._store.transaction():
            row = self._store.update(self.row, **changes)
            self._store.forget_deleted(row, row.indexed_seq)
        self.sync()
        self._added_seq = row.indexed_seq
        self.unrefreshed_since = None

    @contextlib.contextmanager
    def _use_writer(self) -> Iterator[Shard]:
        """Yield the search index with an open writer. After an error, the next writer starts at the last commit."""
        shard: Shard | None = None
        try:
            shard = self._shard_on_disk()
            if not shard.has_open_writer:
                shard.open_writer()
                self._added_seq = self.row.indexed_seq
            yield shard
        except TANTIVY_ERRORS as error:
            if shard is not None:
                shard.close_writer(wait=False)
            self._added_seq = self.row.indexed_seq
            raise storage_error(self._store.folder, str(error)) from error

    def _shard_on_disk(self) -> Shard:
        """Return the search index on disk, which is created if it does not exist."""
        with self._lock:
            shard = self._load_snapshot().shard
            if shard.folder is None:
                shard = self._shard = Shard(self._generation_folder(self.row), self.row.layout)
            return shard

    def close_writer(self, *, wait: bool = True) -> None:
        """Close the search index's writer. The next writer reads the uncommitted documents from the store."""
        if self._shard is not None and self._shard.has_open_writer:
            self._shard.close_writer(wait=wait)
            self._added_seq = self.row.indexed_seq

    @property
    def has_open_writer(self) -> bool:
        return self._shard is not None and self._shard.has_open_writer

    def _generation_folder(self, row: IndexRow, generation: int | None = None) -> Path:
        """Return the folder of a search index, such as ``index-3/generation-2``. Each rebuild is a new generation."""
        return self._store.folder / f"index-{row.id}" / f"generation-{generation or row.generation}"

    @property
    def folder(self) -> Path:
        """The folder with all generations of the search index."""
        return self._store.folder / f"index-{self.row.id}"
