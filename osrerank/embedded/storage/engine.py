"""The engine of a folder: its open indices, the lock of its only writer, and the thread that refreshes indices."""

import atexit
import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from osrerank._platform import fork_safe_lock
from osrerank.embedded.errors import (
    Fault,
    Json,
    argument_fault,
    index_exists_fault,
    missing_index_fault,
    unsupported_fault,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import IndexFields, merge
from osrerank.embedded.storage.index import LiveIndex, build_layout, check_mappings
from osrerank.embedded.storage.lock import WriterLock
from osrerank.embedded.storage.shard import TANTIVY_ERRORS
from osrerank.embedded.storage.store import IndexRow, SqliteStore, StoredDocument

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
"""The default interval between refreshes, in seconds."""
MAX_WRITERS = 4
"""The maximum number of open search-index writers; each takes a thread and up to 64 MB."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_engines: dict[tuple[int, Path], "Engine"] = {}
"""Process id and folder -> the open engine."""
_engines_lock = fork_safe_lock()


class Engine:
    """The engine of a folder. Safe to use from many threads.

    ``Engine.shared`` returns it, because the clients of a process with the same folder share one engine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder)
        self._writer = WriterLock(folder)
        self._write_lock = threading.RLock()
        self._live: dict[int, LiveIndex] = {}
        self._live_lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._refresher: threading.Thread | None = None
        self.users = 0

    @classmethod
    def shared(cls, folder: Path) -> "Engine":
        """Return the folder's engine for one more user, who calls ``release`` at the end."""
        key = (os.getpid(), folder.resolve())
        with _engines_lock:
            if key not in _engines:
                _engines[key] = cls(key[1])
            _engines[key].users += 1
            return _engines[key]

    def release(self) -> None:
        """Release the engine; the last user's release closes it."""
        with _engines_lock:
            self.users -= 1
            if self.users > 0:
                return
            _engines.pop((os.getpid(), self.folder), None)
        self.close()

    def close(self) -> None:
        """Commit pending writes, stop the refresh thread, and release the write lock."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        with self._write_lock:
            if self._writer.is_held:
                self._close_writing()
            self.store.close()

    def _close_writing(self) -> None:
        for live_index in self._live.values():
            # The store has all documents; the next writer commits those that fail now.
            with contextlib.suppress(Fault):
                if live_index.dirty_since is not None and live_index.row.name in self.store.indices():
                    live_index.refresh()
            live_index.close_writer()
        self._writer.release()

    # Reading

    def resolve_names(self, expression: str | None, *, hidden: bool = False, aliases: bool = True) -> list[str]:
        """Return the indices that an expression matches, in the order of its parts, sorted within a part.

        An expression is a list of names, aliases and patterns with ``*``, separated by commas. After a pattern, a part
        that begins with a minus excludes a name or a pattern.

        Raises:
            Fault: 404 for a name that is neither an index nor an alias; 400 for date mathematics.
        """
        rows, index_ids_by_alias = self.store.indices(), self.store.aliases()
        by_id = {row.id: name for name, row in rows.items()}
        names: dict[str, None] = {}
        segments = (expression or "_all").split(",")
        for index, segment in enumerate(segments):
            if segment.startswith("<"):
                raise unsupported_fault(f"[{segment}] as a name of indices", "pass names, aliases and patterns with *")
            excludes = segment.startswith("-") and any("*" in earlier for earlier in segments[:index])
            name_or_pattern = "*" if segment == "_all" else segment[excludes:]
            if "*" in name_or_pattern:
                pattern = values.compile_wildcard(name_or_pattern)
                matches = [
                    name for name, row in rows.items() if pattern.fullmatch(name) and (hidden or not row.is_hidden)
                ]
                if aliases:
                    matches += [
                        by_id[index_id]
                        for alias, index_ids in index_ids_by_alias.items()
                        if pattern.fullmatch(alias)
                        for index_id in index_ids
                    ]
            elif name_or_pattern in rows:
                matches = [name_or_pattern]
            elif name_or_pattern in index_ids_by_alias:
                matches = [] if excludes else [by_id[index_id] for index_id in index_ids_by_alias[name_or_pattern]]
            else:
                raise missing_index_fault(name_or_pattern)
            if excludes:
                names = {name: None for name in names if name not in matches}
            else:
                names.update(dict.fromkeys(sorted(matches)))
        return list(names)

    def drop_missing(self, segments: list[str]) -> list[str]:
        """Return the parts of an expression without the names of missing indices and aliases."""
        names = {*self.store.indices(), *self.store.aliases(), "_all"}
        return [segment for segment in segments if segment in names or "*" in segment or segment.startswith(("-", "<"))]

    def resolve_single(self, name: str) -> str:
        """Return the only index with this name or alias.

        Raises:
            Fault: 404 if the index does not exist; 400 if the alias has several indices.
        """
        if "*" in name or "," in name:
            raise missing_index_fault(name)
        indices = self.resolve_names(name)
        if len(indices) != 1:
            raise argument_fault(
                f"alias [{name}] has more than one index associated with it {indices}, can't execute a single index op"
            )
        return indices[0]

    def open_index(self, name: str) -> LiveIndex:
        """Return the open index of this name; raise a 404 if the index does not exist."""
        row = self.store.indices().get(name)
        if row is None:
            raise missing_index_fault(name)
        with self._live_lock:
            live_index = self._live.get(row.id)
            if live_index is None:
                live_index = self._live[row.id] = LiveIndex(self.store, row)
        live_index.sync()
        return live_index

    def searchable_indices(self, expression: str | None) -> list[LiveIndex]:
        """Return the indices to search; each is refreshed if its interval has passed and this process is the writer."""
        indices = [self.open_index(name) for name in self.resolve_names(expression)]
        for live_index in indices:
            self._refresh_if_due(live_index)
        return indices

    def _refresh_if_due(self, live_index: LiveIndex) -> None:
        """Refresh an index whose interval has passed, and rebuild a damaged one."""
        if not live_index.is_usable:
            with self.writing():
                if not live_index.is_usable:
                    logger.warning("building the search index of [%s] again from the store", live_index.row.name)
                    live_index.rebuild()
        elif self._writer.is_held:
            if self._is_due(live_index):
                with self.writing():
                    live_index.refresh()
        else:
            self._recover_if_behind(live_index)

    def _recover_if_behind(self, live_index: LiveIndex) -> None:
        """Commit the stored documents that a writer left uncommitted when it died, then release the write lock."""
        if not live_index.is_behind or self.store.read_only:
            return
        with self._write_lock:
            if self._writer.is_held or not self._writer.try_acquire():
                return
            self._read_foreign_writes()
            live_index.refresh()
            live_index.close_writer()
            self._writer.release()

    def _is_due(self, live_index: LiveIndex) -> bool:
        interval = refresh_interval_s(live_index.row.settings)
        since = live_index.dirty_since
        return since is not None and interval is not None and time.monotonic() - since >= interval

    # Writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder's write lock, against other threads and processes.

        Raises:
            Fault: 503 if the client is closed or another process writes; 403 if the folder is read-only.
        """
        with self._write_lock:
            if self._closed:
                raise Fault(503, "node_closed_exception", f"the client of {self.folder} is closed: connect again")
            if self.store.read_only:
                reason = f"the embedded folder {self.folder} is read-only: check its permissions, or use another folder"
                raise Fault(403, "cluster_block_exception", reason)
            if not self._writer.is_held:
                self._writer.acquire()
                self._read_foreign_writes()
            yield

    def _read_foreign_writes(self) -> None:
        for name in self.store.indices():
            self.open_index(name).load_foreign_writes()

    def write_target(self, name: str) -> LiveIndex:
        """Return the index for a write to a name or alias; create it if it does not exist."""
        rows, aliases = self.store.indices(), self.store.aliases()
        if name in aliases:
            targets = [row.name for row in rows.values() if row.id in aliases[name]]
            if len(targets) > 1:
                raise argument_fault(
                    f"no write index is defined for alias [{name}]: it points to several indices {targets}"
                )
            return self.open_index(targets[0])
        if name not in rows:
            self.create(name, {}, {})
        return self.open_index(name)

    def create(self, name: str, mappings: Json, settings: Json) -> IndexRow:
        """Create an index."""
        _check_name(name)
        with self.writing():
            existing = self.store.indices().get(name)
            if existing is not None:
                raise index_exists_fault(name, existing.uuid)
            if name in self.store.aliases():
                reason = f"Invalid index name [{name}], already exists as alias"
                raise Fault(400, "invalid_index_name_exception", reason, {"index": name, "index_uuid": "_na_"})
            fields, _ = check_mappings(merge({}, mappings), settings)
            with self.store.transaction():
                return self.store.create(name, fields.mappings, settings, build_layout(fields))

    def delete(self, name: str) -> None:
        """Remove an index with its documents."""
        with self.writing():
            live_index = self.open_index(name)
            live_index.close_writer()
            with self.store.transaction():
                self.store.drop(live_index.row)
            with self._live_lock:
                self._live.pop(live_index.row.id, None)
            shutil.rmtree(live_index.folder, ignore_errors=True)

    def merge_fields(self, live_index: LiveIndex, mappings: Json) -> IndexFields:
        """Return an index's fields with these mappings added; raise the fault if they conflict."""
        return check_mappings(merge(live_index.row.mappings, mappings), live_index.row.settings)[0]

    def change(self, live_index: LiveIndex, *, mappings: Json | None = None, settings: Json | None = None) -> None:
        """Add fields to an index, or set its dynamic settings; new fields become searchable at the next refresh."""
        with self.writing():
            fields = self.merge_fields(live_index, mappings or {})
            changed = {"mappings": fields.mappings, "settings": settings or live_index.row.settings}
            with self.store.transaction():
                row = self.store.update(live_index.row, **changed)
            live_index.sync()
            if row.layout != build_layout(live_index.fields):
                live_index.dirty_since = live_index.dirty_since or time.monotonic()
                self._start_refresher()

    def write(self, batches: Mapping[LiveIndex, list[StoredDocument]]) -> None:
        """Make documents durable, then add them to their search indices; returning acknowledges the write."""
        with self.writing():
            with self.store.transaction():
                for live_index, rows in batches.items():
                    self.store.put(live_index.row, rows)
            for live_index, rows in batches.items():
                live_index.record_stored(rows)
            for live_index, rows in batches.items():
                self._limit_writers(live_index)
                try:
                    live_index.feed(rows)
                except Fault as fault:  # the store has the documents; the next refresh tries again
                    _log_failed_refresh(live_index, fault)
            self._start_refresher()

    def refresh(self, live_index: LiveIndex) -> None:
        """Make an index's documents visible to searches now, unless another process writes."""
        if not self._writer.is_held:
            self._recover_if_behind(live_index)
            if live_index.dirty_since is None:
                return
        if live_index.dirty_since is None and live_index.row.layout == build_layout(live_index.fields):
            return
        with self.writing():
            self._limit_writers(live_index)
            live_index.refresh()

    def _limit_writers(self, target: LiveIndex) -> None:
        """Close another index's writer if too many are open; its errors are logged."""
        writers = [other for other in self._live.values() if other.has_writer and other is not target]
        if not target.has_writer and len(writers) >= MAX_WRITERS:
            try:
                writers[0].refresh()
                writers[0].close_writer()
            except (Fault, *TANTIVY_ERRORS) as error:  # its documents are in the store; its next refresh tries again
                _log_failed_refresh(writers[0], error)
                writers[0].close_writer(wait=False)

    def _start_refresher(self) -> None:
        if self._refresher is None:
            self._refresher = threading.Thread(target=self._refresh_loop, name="osrerank-refresh", daemon=True)
            self._refresher.start()

    def _refresh_loop(self) -> None:
        while not self._wake.wait(REFRESH_S / 4):
            with self._live_lock:
                due = [live_index for live_index in self._live.values() if self._is_due(live_index)]
            for live_index in due:
                try:
                    with self._write_lock:
                        if not self._closed and self._writer.is_held and live_index.row.name in self.store.indices():
                            self.refresh(live_index)
                except Exception as error:  # noqa: BLE001 - the next turn tries again; the other indices need this thread
                    if not isinstance(error, Fault):
                        _log_failed_refresh(live_index, error)


def _log_failed_refresh(live_index: LiveIndex, error: BaseException) -> None:
    name = live_index.row.name
    logger.warning("stored documents of [%s] are not searchable until a refresh succeeds: %s", name, error)


def refresh_interval_s(settings: Json) -> float | None:
    """Return the seconds after which writes become visible. None if only a request for a refresh makes them visible."""
    text = str(settings.get("index", {}).get("refresh_interval", "1s"))
    if text == "-1":
        return None
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if match is None:
        reason = f"failed to parse setting [index.refresh_interval] with value [{text}]: pass -1 or a time such as 1s"
        raise Fault(400, "illegal_argument_exception", reason)
    return int(match[1]) * _UNITS_S[match[2]]


def _check_name(name: str) -> None:
    """Refuse index names that OpenSearch refuses."""
    problem = ""
    if name != name.lower():
        problem = "must be lowercase"
    elif name.startswith(("_", "-", "+")):
        problem = "must not start with '_', '-', or '+'"
    elif (
        not name or name in (".", "..") or any(letter in name for letter in ' "*\\<|,>/?#:') or len(name.encode()) > 255
    ):
        problem = "must not be empty, '.', '..', longer than 255 bytes, or contain a space or one of \"*\\<|,>/?#:"
    if problem:
        reason = f"Invalid index name [{name}], {problem}"
        raise Fault(400, "invalid_index_name_exception", reason, {"index": name, "index_uuid": "_na_"})


@atexit.register
def _close_all() -> None:
    """Commit the writes of clients that were never closed."""
    for (process, _), engine in list(_engines.items()):
        if process == os.getpid():
            engine.close()
