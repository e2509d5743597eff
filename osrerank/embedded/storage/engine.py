"""The engine opens the indices in a folder, lets one process at a time write them, and refreshes them in a thread."""

import atexit
import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from osrerank._log_throttle import LogThrottle
from osrerank._platform import fork_safe_lock
from osrerank.embedded.errors import (
    ApiError,
    Json,
    argument_error,
    index_exists_error,
    missing_index_error,
    unsupported_error,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import IndexFields, merge_mappings
from osrerank.embedded.storage.index import LiveIndex, build_layout, check_mappings
from osrerank.embedded.storage.lock import FolderLock
from osrerank.embedded.storage.shard import TANTIVY_ERRORS
from osrerank.embedded.storage.store import IndexRow, SqliteStore, StoredDocument

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
"""The default interval between refreshes, in seconds."""
REFRESH_CHECK_S = REFRESH_S / 4
"""The interval at which the refresh thread looks for indices that need a refresh, in seconds."""
MAX_WRITERS = 4
"""The maximum number of indices with an open writer. Each writer takes a thread and up to 64 MB."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""The length of each unit of time, in seconds."""

_engines: dict[tuple[int, Path], "Engine"] = {}
"""The open engines, by process id and folder. A forked child does not use its parent's engines."""
_engines_lock = fork_safe_lock()


class Engine:
    """Reads and writes the indices in a folder. Threads can share an engine.

    Clients get their engine from `Engine.shared`, because all clients of a process with the same folder need the same
    engine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder)
        self._folder_lock = FolderLock(folder)  # keeps out other processes
        self._thread_lock = threading.RLock()  # keeps out other threads of this process
        self._open_indices: dict[int, LiveIndex] = {}  # by the index's id in the store
        self._open_indices_lock = threading.RLock()
        self._stop_refresher = threading.Event()
        self._is_closed = False
        self._refresher: threading.Thread | None = None
        self.client_count = 0

    @classmethod
    def shared(cls, folder: Path) -> "Engine":
        """Return the folder's engine, which clients share. Each client must call ``release`` at the end."""
        folder = folder.resolve()
        key = (os.getpid(), folder)
        with _engines_lock:
            engine = _engines.get(key)
            if engine is None:
                engine = _engines[key] = cls(folder)
            engine.client_count += 1
            return engine

    def release(self) -> None:
        """Give the engine back. It is closed when its last client has released it."""
        with _engines_lock:
            self.client_count -= 1
            if self.client_count > 0:
                return
            _engines.pop((os.getpid(), self.folder), None)
        self.close()

    def close(self) -> None:
        """Commit pending writes, stop the refresh thread, and let other processes write."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_refresher.set()
        with self._thread_lock:
            if self._folder_lock.is_held:
                self._close_writers()
                self._folder_lock.release()
            self.store.close()

    def _close_writers(self) -> None:
        for live_index in self._open_indices.values():
            # The store has all documents. If a refresh fails now, the next writer commits them.
            with contextlib.suppress(ApiError):
                if live_index.unrefreshed_since is not None and live_index.row.name in self.store.indices():
                    live_index.refresh()
            live_index.close_writer()

    # Reading

    def resolve_names(self, expression: str | None, *, hidden: bool = False, aliases: bool = True) -> list[str]:
        """Return the names of the indices that an expression matches, in the order of its parts, sorted within a part.

        An expression is a list of names, aliases and patterns, separated by commas. ``news,logs-*,-logs-old`` matches
        ``news`` and all indices whose names begin with ``logs-``, but not ``logs-old``: after a pattern, a part that
        begins with a minus excludes a name or a pattern. None matches all indices. Patterns match hidden indices only
        if ``hidden`` is set, and aliases only if ``aliases`` is set.

        Raises:
            ApiError: 404 for a name that is neither an index nor an alias; 400 for date math.
        """
        rows, index_ids_by_alias = self.store.indices(), self.store.aliases()
        names_by_id = {row.id: name for name, row in rows.items()}
        names: dict[str, None] = {}  # a set that keeps the order
        parts = (expression or "_all").split(",")
        for position, part in enumerate(parts):
            if part.startswith("<"):
                raise unsupported_error(f"[{part}] as a name of indices", "pass names, aliases and patterns with *")
            follows_pattern = any("*" in earlier for earlier in parts[:position])
            excludes = follows_pattern and part.startswith("-")
            name_or_pattern = part.removeprefix("-") if excludes else part
            if part == "_all":
                name_or_pattern = "*"
            if "*" in name_or_pattern:
                matches = _match_pattern(name_or_pattern, rows, index_ids_by_alias if aliases else {}, hidden=hidden)
            elif name_or_pattern in rows:
                matches = [name_or_pattern]
            elif name_or_pattern in index_ids_by_alias:
                matches = []
                if not excludes:  # -ALIAS excludes nothing
                    matches = [names_by_id[index_id] for index_id in index_ids_by_alias[name_or_pattern]]
            else:
                raise missing_index_error(name_or_pattern)
            if excludes:
                names = {name: None for name in names if name not in matches}
            else:
                names.update(dict.fromkeys(sorted(matches)))
        return list(names)

    def drop_missing(self, parts: list[str]) -> list[str]:
        """Return the parts of an expression except the names of missing indices and aliases."""
        existing = {*self.store.indices(), *self.store.aliases(), "_all"}
        kept = []
        for part in parts:
            is_single_name = "*" not in part and not part.startswith(("-", "<"))
            if part in existing or not is_single_name:
                kept.append(part)
        return kept

    def resolve_single(self, name: str) -> str:
        """Return the only index with this name or alias.

        Raises:
            ApiError: 404 if the index does not exist; 400 if the alias has several indices.
        """
        if "*" in name or "," in name:
            raise missing_index_error(name)
        indices = self.resolve_names(name)
        if len(indices) != 1:
            raise argument_error(
                f"alias [{name}] has more than one index associated with it {indices}, can't execute a single index op"
            )
        return indices[0]

    def open_index(self, name: str) -> LiveIndex:
        """Return the index with this name, which is opened if necessary, or raise a 404 if it does not exist."""
        row = self.store.indices().get(name)
        if row is None:
            raise missing_index_error(name)
        with self._open_indices_lock:
            live_index = self._open_indices.get(row.id)
            if live_index is None:
                live_index = self._open_indices[row.id] = LiveIndex(self.store, row)
        live_index.sync()
        return live_index

    def searchable_indices(self, expression: str | None) -> list[LiveIndex]:
        """Return the indices that an expression matches, ready for a search."""
        indices = [self.open_index(name) for name in self.resolve_names(expression)]
        for live_index in indices:
            self._prepare_for_search(live_index)
        return indices

    def _prepare_for_search(self, live_index: LiveIndex) -> None:
        """Rebuild an index if its files are damaged, or refresh it if its refresh interval has passed."""
        if not live_index.is_usable:
            with self.hold_write_lock():
                if not live_index.is_usable:
                    logger.warning("building the search index of [%s] again from the store", live_index.row.name)
                    live_index.rebuild()
        elif self._folder_lock.is_held:
            if self._needs_refresh(live_index):
                with self.hold_write_lock():
                    live_index.refresh()
        else:
            self._commit_abandoned_writes(live_index)

    def _commit_abandoned_writes(self, live_index: LiveIndex) -> None:
        """Commit the documents that a process has stored but not committed before it died.

        If another process writes to the folder, it commits them itself, so this does nothing.
        """
        if not live_index.has_uncommitted_documents or self.store.read_only:
            return
        with self._thread_lock:
            if self._folder_lock.is_held or not self._folder_lock.try_acquire():
                return
            self._load_external_writes()
            live_index.refresh()
            live_index.close_writer()
            self._folder_lock.release()

    def _needs_refresh(self, live_index: LiveIndex) -> bool:
        interval_s = refresh_interval_s(live_index.row.settings)
        since_s = live_index.unrefreshed_since
        return since_s is not None and interval_s is not None and time.monotonic() - since_s >= interval_s

    # Writing

    @contextlib.contextmanager
    def hold_write_lock(self) -> Iterator[None]:
        """Keep other threads from writing during the block, and other processes until the engine is closed.

        Raises:
            ApiError: 503 if the client is closed or another process writes; 403 if the folder is read-only.
        """
        with self._thread_lock:
            if self._is_closed:
                raise ApiError(503, "node_closed_exception", f"the client of {self.folder} is closed: connect again")
            if self.store.read_only:
                reason = f"the embedded folder {self.folder} is read-only: check its permissions, or use another folder"
                raise ApiError(403, "cluster_block_exception", reason)
            if not self._folder_lock.is_held:
                self._folder_lock.acquire()
                self._load_external_writes()
            yield

    def _load_external_writes(self) -> None:
        """Let each index note what other processes have written before this process got the folder lock."""
        for name in self.store.indices():
            self.open_index(name).load_external_writes()

    def find_write_index(self, name: str) -> LiveIndex:
        """Return the index with this name, or the only index of this alias. A missing index is created."""
        rows, index_ids_by_alias = self.store.indices(), self.store.aliases()
        if name in index_ids_by_alias:
            targets = [row.name for row in rows.values() if row.id in index_ids_by_alias[name]]
            if len(targets) > 1:
                raise argument_error(
                    f"no write index is defined for alias [{name}]: it points to several indices {targets}"
                )
            return self.open_index(targets[0])
        if name not in rows:
            self.create(name, {}, {})
        return self.open_index(name)

    def create(self, name: str, mappings: Json, settings: Json) -> IndexRow:
        """Create an index, or raise a 400 if its name is invalid or exists."""
        _check_name(name)
        with self.hold_write_lock():
            existing = self.store.indices().get(name)
            if existing is not None:
                raise index_exists_error(name, existing.uuid)
            if name in self.store.aliases():
                reason = f"Invalid index name [{name}], already exists as alias"
                raise ApiError(400, "invalid_index_name_exception", reason, {"index": name, "index_uuid": "_na_"})
            fields, _ = check_mappings(merge_mappings({}, mappings), settings)
            with self.store.transaction():
                return self.store.create(name, fields.mappings, settings, build_layout(fields))

    def delete(self, name: str) -> None:
        """Delete an index with its documents."""
        with self.hold_write_lock():
            live_index = self.open_index(name)
            live_index.close_writer()
            with self.store.transaction():
                self.store.drop(live_index.row)
            with self._open_indices_lock:
                self._open_indices.pop(live_index.row.id, None)
            shutil.rmtree(live_index.folder, ignore_errors=True)

    def merge_fields(self, live_index: LiveIndex, mappings: Json) -> IndexFields:
        """Return the fields that an index would have with these mappings, or raise an `ApiError` for a conflict."""
        fields, _ = check_mappings(merge_mappings(live_index.row.mappings, mappings), live_index.row.settings)
        return fields

    def change(self, live_index: LiveIndex, *, mappings: Json | None = None, settings: Json | None = None) -> None:
        """Add fields to an index, or replace its settings. New fields become searchable at the next refresh."""
        with self.hold_write_lock():
            fields = self.merge_fields(live_index, mappings or {})
            settings = settings or live_index.row.settings
            with self.store.transaction():
                row = self.store.update(live_index.row, mappings=fields.mappings, settings=settings)
            live_index.sync()
            needs_new_columns = row.layout != build_layout(live_index.fields)
            if needs_new_columns:
                live_index.mark_changed()
                self._start_refresher()

    def write(self, batches: Mapping[LiveIndex, list[StoredDocument]]) -> None:
        """Store the documents of each index in one transaction, then add them to the search indices."""
        with self.hold_write_lock():
            with self.store.transaction():
                for live_index, rows in batches.items():
                    self.store.put(live_index.row, rows)
            for live_index, rows in batches.items():
                live_index.record_stored(rows)
            for live_index, rows in batches.items():
                self._limit_writers(live_index)
                try:
                    live_index.add_documents(rows)
                except ApiError as error:  # the store has the documents; the next refresh tries again
                    _log_failed_refresh(live_index, error)
            self._start_refresher()

    def refresh(self, live_index: LiveIndex) -> None:
        """Make all stored documents of an index visible to searches, unless another process writes."""
        if not self._folder_lock.is_held:
            self._commit_abandoned_writes(live_index)
        # Only the process that holds the folder lock adds the columns of new fields.
        needs_columns = self._folder_lock.is_held and live_index.row.layout != build_layout(live_index.fields)
        if live_index.unrefreshed_since is None and not needs_columns:
            return
        with self.hold_write_lock():
            self._limit_writers(live_index)
            live_index.refresh()

    def _limit_writers(self, target: LiveIndex) -> None:
        """Close the writer of another index if a writer for ``target`` would be one too many."""
        if target.has_open_writer:
            return
        others = [other for other in self._open_indices.values() if other.has_open_writer]
        if len(others) >= MAX_WRITERS:
            oldest = others[0]
            try:
                oldest.refresh()
                oldest.close_writer()
            except (ApiError, *TANTIVY_ERRORS) as error:  # the store has the documents; the next refresh tries again
                _log_failed_refresh(oldest, error)
                oldest.close_writer(wait=False)

    def _start_refresher(self) -> None:
        if self._refresher is None:
            self._refresher = threading.Thread(target=self._refresh_loop, name="osrerank-refresh", daemon=True)
            self._refresher.start()

    def _refresh_loop(self) -> None:
        throttle = LogThrottle()
        while not self._stop_refresher.wait(REFRESH_CHECK_S):
            with self._open_indices_lock:
                unrefreshed = [index for index in self._open_indices.values() if self._needs_refresh(index)]
            for live_index in unrefreshed:
                try:
                    with self._thread_lock:
                        is_writer = not self._is_closed and self._folder_lock.is_held
                        if is_writer and live_index.row.name in self.store.indices():
                            self.refresh(live_index)
                except Exception as error:  # noqa: BLE001 - the next turn tries again; the other indices need this thread
                    if not self._is_closed and throttle.should_log(live_index.row.name):
                        _log_failed_refresh(live_index, error)


def _match_pattern(
    text: str, rows: Mapping[str, IndexRow], index_ids_by_alias: Mapping[str, Iterable[int]], *, hidden: bool
) -> list[str]:
    """Return the names of the indices whose name or alias matches a pattern. ``hidden`` includes hidden indices."""
    pattern = values.compile_wildcard(text)
    matching_aliases = [alias for alias in index_ids_by_alias if pattern.fullmatch(alias)]
    alias_ids = {index_id for alias in matching_aliases for index_id in index_ids_by_alias[alias]}
    return [
        name
        for name, row in rows.items()
        if row.id in alias_ids or (pattern.fullmatch(name) and (hidden or not row.is_hidden))
    ]


def _log_failed_refresh(live_index: LiveIndex, error: BaseException) -> None:
    name = live_index.row.name
    logger.warning("stored documents of [%s] are not searchable until a refresh succeeds: %s", name, error)


def refresh_interval_s(settings: Json) -> float | None:
    """Return the refresh interval of an index, such as 0.5 for "500ms". None if only requests refresh the index."""
    text = str(settings.get("index", {}).get("refresh_interval", "1s"))
    if text == "-1":
        return None
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if match is None:
        reason = f"failed to parse setting [index.refresh_interval] with value [{text}]: pass -1 or a time such as 1s"
        raise ApiError(400, "illegal_argument_exception", reason)
    return int(match[1]) * _UNITS_S[match[2]]


def _check_name(name: str) -> None:
    problem = ""
    has_forbidden_character = any(character in name for character in ' "*\\<|,>/?#:')
    if name != name.lower():
        problem = "must be lowercase"
    elif name.startswith(("_", "-", "+")):
        problem = "must not start with '_', '-', or '+'"
    elif name in ("", ".", "..") or has_forbidden_character or len(name.encode()) > 255:
        problem = "must not be empty, '.', '..', longer than 255 bytes, or contain a space or one of \"*\\<|,>/?#:"
    if problem:
        reason = f"Invalid index name [{name}], {problem}"
        raise ApiError(400, "invalid_index_name_exception", reason, {"index": name, "index_uuid": "_na_"})


@atexit.register
def _close_all() -> None:
    """Commit the writes of clients that were never closed."""
    for (process_id, _), engine in list(_engines.items()):
        if process_id == os.getpid():
            engine.close()
