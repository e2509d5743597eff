"""Look up values by document or query id in a SQLite file, for tables that are too large for memory.

SQLite appends the rows, then sorts them on disk. A hundred million rows take minutes, whereas inserts in random order
would take days. SQLite's temporary files are in ``SQLITE_TMPDIR`` if it is set, then in ``TMPDIR``, then in
``/var/tmp``.
"""

import contextlib
import os
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from osrerank.errors import LoaderError

CACHE_KIB = 16 << 10
"""The memory that SQLite uses for cached pages and while it sorts, in KiB."""
VERSION = 1
_SCHEMA = """
    CREATE TABLE unsorted.added (id BLOB, number INTEGER, value);
    CREATE TABLE sorted (id BLOB, number INTEGER, value, PRIMARY KEY (id, number)) WITHOUT ROWID;
    CREATE TABLE origin (version INTEGER, key TEXT, count INTEGER)
"""
"""``origin`` has one row: the version of the format, the key of the table, and the number of its rows."""
_SORT_ROWS = "INSERT INTO sorted SELECT id, number, value FROM added ORDER BY id, number"
_FIND_FIRST = "SELECT number, value FROM sorted WHERE id = ? ORDER BY number LIMIT 1"
_FIND_REPEATS = """
    SELECT id, first, number
    FROM sorted JOIN (SELECT id, min(number) AS first FROM sorted GROUP BY id HAVING count(*) > 1) USING (id)
    WHERE number > first ORDER BY number LIMIT ?
"""


class IdRow(NamedTuple):
    """A row of the table.

    Attributes:
        id: the id. Several rows can have the same id.
        number: the row's number, such as its line number. Of rows with the same id, the lowest number counts.
        value: what is looked up, such as a byte offset.
    """

    id: str
    number: int
    value: int | str = 0


class Repeat(NamedTuple):
    """A row with the id of an earlier row.

    Attributes:
        id: the id.
        first_number: the number of the first row with this id.
        number: the number of this row.
    """

    id: str
    first_number: int
    number: int


class IdTable:
    """Rows in a file, which are found by id. Any thread can use the table.

    Args:
        database: the open database. It is closed by `close`, or when the table is garbage-collected.
        count: the number of rows.
        name: the file's name, for error messages.
    """

    def __init__(self, database: sqlite3.Connection, count: int, name: str = "the temporary folder") -> None:
        self._database, self._count, self._name = database, count, name
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, database.close)

    @classmethod
    def create_temporary(cls, rows: Iterable[IdRow]) -> "IdTable":
        """Sort rows into a temporary file that is removed with the table. A small table stays in memory.

        Raises:
            LoaderError: the disk is full.
        """
        return cls(*_create_database(path="", rows=rows, key=""))

    @classmethod
    def open_existing(cls, path: Path, key: str) -> "IdTable | None":
        """Open the table that `create` wrote with this key, or return None if the file contains no such table."""
        try:
            database = _open_read_only(path)
        except sqlite3.OperationalError:  # the path does not exist, or is not a file
            return None
        try:
            _limit_cache(database)
            version, stored_key, count = database.execute("SELECT version, key, count FROM origin").fetchone()
        except (sqlite3.Error, TypeError):  # an incomplete file, or one of another program
            database.close()
            return None
        if (version, stored_key) == (VERSION, key):
            return cls(database, count, str(path))
        database.close()
        return None

    @classmethod
    def create(
        cls, path: Path, key: str, rows: Iterable[IdRow], *, check: Callable[["IdTable"], None] = lambda _table: None
    ) -> "IdTable":
        """Sort rows into a file, and return the table.

        Args:
            path: the file, which is replaced atomically when the table is complete.
            key: a string that changes when the rows change, such as the size and time of the file that they come from.
            rows: the rows, which are read once.
            check: called with the table before the file is replaced. If it raises an error, the file is not replaced.

        Raises:
            LoaderError: the disk is full, or the file cannot be written.
        """
        try:
            handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
            os.close(handle)
        except OSError as error:
            raise LoaderError(f"{path.parent}: {error.strerror or error}", file=str(path)) from error
        temporary = Path(name)
        try:
            table = cls(*_create_database(str(temporary), rows, key))
            try:
                check(table)
            finally:
                table.close()
            _flush_to_disk(temporary)
            try:
                temporary.replace(path)
            except OSError as error:
                raise LoaderError(f"{path}: {error.strerror or error}", file=str(path)) from error
        finally:
            temporary.unlink(missing_ok=True)
        database = _open_read_only(path)
        _limit_cache(database)
        return cls(database, len(table), str(path))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row_id: str) -> bool:
        return self.get(row_id) is not None

    def get(self, row_id: str) -> IdRow | None:
        """Return the row with an id and the lowest number, or None if no row has the id.

        Raises:
            LoaderError: the file is damaged.
        """
        with self._lock, _convert_read_errors(self._name):
            row = self._database.execute(_FIND_FIRST, (_encode_id(row_id),)).fetchone()
        return None if row is None else IdRow(row_id, *row)

    def find_repeats(self, limit: int) -> list[Repeat]:
        """Return the first ``limit`` rows with the id of an earlier row, in the order of their numbers."""
        with self._lock, _convert_sort_errors("the temporary folder"):  # SQLite sorts the result there
            repeats = self._database.execute(_FIND_REPEATS, (limit,)).fetchall()
        return [Repeat(_decode_id(row_id), first, number) for row_id, first, number in repeats]


def open_scratch_database(path: str) -> sqlite3.Connection:
    """Open a database for fast writes, which a crash can damage. The path "" opens a temporary database."""
    database = sqlite3.connect(path, check_same_thread=False)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
        database.execute(f"PRAGMA {pragma}")
    _limit_cache(database)
    return database


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open a complete file. Other processes can replace the file, but never change it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, check_same_thread=False)


def _limit_cache(database: sqlite3.Connection, schema: str = "main") -> None:
    database.execute(f"PRAGMA {schema}.cache_size = -{CACHE_KIB}")


def _create_database(path: str, rows: Iterable[IdRow], key: str) -> tuple[sqlite3.Connection, int]:
    with _convert_sort_errors(path or "the temporary folder"), contextlib.ExitStack() as stack:
        database = stack.enter_context(contextlib.closing(open_scratch_database(path)))
        database.execute("ATTACH '' AS unsorted")  # a temporary file
        _limit_cache(database, "unsorted")
        database.executescript(_SCHEMA)
        parameters = ((_encode_id(row_id), number, value) for row_id, number, value in rows)
        count = database.executemany("INSERT INTO added VALUES (?, ?, ?)", parameters).rowcount
        database.execute(_SORT_ROWS)
        database.execute("INSERT INTO origin VALUES (?, ?, ?)", (VERSION, key, count))
        database.commit()
        database.execute("DETACH unsorted")
        stack.pop_all()  # on success, the database stays open
    return database, count


def _encode_id(row_id: str) -> bytes:
    """Encode an id as bytes, because it can contain unpaired surrogates, which SQLite cannot store as text."""
    return row_id.encode("utf-8", "surrogatepass")


def _decode_id(row_id: bytes) -> str:
    return row_id.decode("utf-8", "surrogatepass")


def _flush_to_disk(path: Path) -> None:
    """Flush a file's content to disk before it is renamed, so that it is complete after a power failure."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _convert_read_errors(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LoaderError(
            f"the sorted ids in {name} cannot be read ({error}); delete the file, which is then written again",
            file=name,
        ) from error


@contextlib.contextmanager
def _convert_sort_errors(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        reason = f"ids cannot be sorted in {name} ({error}); free some space, or set SQLITE_TMPDIR to another folder"
        raise LoaderError(reason, file=name) from error
