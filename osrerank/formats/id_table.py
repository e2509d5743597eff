"""Store values by id in a file, so that tables that grow with a collection take disk space instead of memory.

SQLite appends the rows, then sorts them on disk. A hundred million rows take minutes; in random order, inserts would
take days. Temporary files of SQLite are in ``SQLITE_TMPDIR``, else ``TMPDIR``, else ``/var/tmp``.
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
"""The memory, in KiB, that SQLite takes for pages and for each run of a sort."""
VERSION = 1
_SCHEMA = """
    CREATE TABLE unsorted.added (id BLOB, number INTEGER, value);
    CREATE TABLE sorted (id BLOB, number INTEGER, value, PRIMARY KEY (id, number)) WITHOUT ROWID;
    CREATE TABLE origin (version INTEGER, key TEXT, count INTEGER)
"""
_SORT = "INSERT INTO sorted SELECT id, number, value FROM added ORDER BY id, number"
_FIRST = "SELECT number, value FROM sorted WHERE id = ? ORDER BY number LIMIT 1"
_REPEATED = """
    SELECT id, first, number
    FROM sorted JOIN (SELECT id, min(number) AS first FROM sorted GROUP BY id HAVING count(*) > 1) USING (id)
    WHERE number > first ORDER BY number LIMIT ?
"""


class IdRow(NamedTuple):
    """A row of the table: an id and its value.

    Attributes:
        id: the id, which several rows may share.
        number: the number of the line or record, from 1; it is unique.
        value: an integer or a text.
    """

    id: str
    number: int
    value: int | str = 0


class Repeat(NamedTuple):
    """A row with the id of an earlier row.

    Attributes:
        id: the id.
        first: the number of the first row with this id.
        number: the number of this row.
    """

    id: str
    first: int
    number: int


class IdTable:
    """Rows sorted by id, in a file; usable from any thread.

    Args:
        database: the open database, which is closed when nothing refers to the table any more.
        count: the number of rows.
        name: the file's name, for errors.
    """

    def __init__(self, database: sqlite3.Connection, count: int, name: str = "the temporary folder") -> None:
        self._database, self._count, self._name = database, count, name
        self._asking = threading.Lock()
        self.close = weakref.finalize(self, database.close)

    @classmethod
    def create_temporary(cls, rows: Iterable[IdRow]) -> "IdTable":
        """Sort rows into a file that is removed with the table; a small table stays in memory.

        Raises:
            LoaderError: the disk has no room for the file.
        """
        return cls(*_sorted("", rows, ""))

    @classmethod
    def open_existing(cls, path: Path, key: str) -> "IdTable | None":
        """Open the table in a file; return None if the file does not exist, or if the table has another key."""
        try:
            database = _read_only(path)
        except sqlite3.OperationalError:  # the path does not exist, or is not a file
            return None
        try:
            _bound_memory(database)
            version, made_with, count = database.execute("SELECT version, key, count FROM origin").fetchone()
        except (sqlite3.Error, TypeError):  # another program's file, or an incomplete one
            version, made_with, count = 0, "", 0
        if (version, made_with) == (VERSION, key):
            return cls(database, count, str(path))
        database.close()
        return None

    @classmethod
    def create(
        cls, path: Path, key: str, rows: Iterable[IdRow], *, check: Callable[["IdTable"], None] = lambda _table: None
    ) -> "IdTable":
        """Sort rows into a file and return the table.

        Args:
            path: the file, which is replaced as a whole when the table is complete.
            key: identity and state of the rows' source; `open_existing` compares it.
            rows: the rows, read once.
            check: callback that may refuse the table by an error, before the file gets its name.

        Raises:
            LoaderError: the disk has no room for the file, or it cannot be written.
        """
        try:
            handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
            os.close(handle)
        except OSError as error:
            raise LoaderError(f"{path.parent}: {error.strerror or error}", file=str(path)) from error
        temporary = Path(name)
        try:
            table = cls(*_sorted(str(temporary), rows, key))
            try:
                check(table)
            finally:
                table.close()
            _to_disk(temporary)
            try:
                temporary.replace(path)
            except OSError as error:
                raise LoaderError(f"{path}: {error.strerror or error}", file=str(path)) from error
        finally:
            temporary.unlink(missing_ok=True)
        database = _read_only(path)
        _bound_memory(database)
        return cls(database, len(table), str(path))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row_id: str) -> bool:
        return self.get(row_id) is not None

    def get(self, row_id: str) -> IdRow | None:
        """Return the first row with an id; None if no row has it.

        Raises:
            LoaderError: the file is damaged.
        """
        with self._asking, _damage(self._name):
            row = self._database.execute(_FIRST, (_encoded(row_id),)).fetchone()
        return None if row is None else IdRow(row_id, *row)

    def find_repeats(self, limit: int) -> list[Repeat]:
        """Return at most ``limit`` rows with the id of an earlier row, in the order of their numbers."""
        with self._asking, _errors("the temporary folder"):
            repeats = self._database.execute(_REPEATED, (limit,)).fetchall()
        return [Repeat(_decoded(row_id), first, number) for row_id, first, number in repeats]


def open_scratch_database(path: str) -> sqlite3.Connection:
    """Open a database with bounded memory, which need not survive a crash; "" opens a temporary database."""
    database = sqlite3.connect(path, check_same_thread=False)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
        database.execute(f"PRAGMA {pragma}")
    _bound_memory(database)
    return database


def _read_only(path: Path) -> sqlite3.Connection:
    """Open a complete file, which other processes may replace but never change."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, check_same_thread=False)


def _bound_memory(database: sqlite3.Connection, schema: str = "main") -> None:
    database.execute(f"PRAGMA {schema}.cache_size = -{CACHE_KIB}")


def _sorted(path: str, rows: Iterable[IdRow], key: str) -> tuple[sqlite3.Connection, int]:
    """Return a database with the rows sorted by id, and the number of rows."""
    with _errors(path or "the temporary folder"), contextlib.ExitStack() as undone:
        database = undone.enter_context(contextlib.closing(open_scratch_database(path)))
        database.execute("ATTACH '' AS unsorted")  # a temporary file
        _bound_memory(database, "unsorted")
        database.executescript(_SCHEMA)
        added = database.executemany("INSERT INTO added VALUES (?, ?, ?)", _parameters(rows))
        count = added.rowcount
        database.execute(_SORT)
        database.execute("INSERT INTO origin VALUES (?, ?, ?)", (VERSION, key, count))
        database.commit()
        database.execute("DETACH unsorted")
        undone.pop_all()
    return database, max(0, count)


def _parameters(rows: Iterable[IdRow]) -> Iterator[tuple[bytes, int, int | str]]:
    return ((_encoded(row_id), number, value) for row_id, number, value in rows)


def _encoded(row_id: str) -> bytes:
    """Return an id as bytes: it may have half of a surrogate pair, which SQLite cannot store as text."""
    return row_id.encode("utf-8", "surrogatepass")


def _decoded(row_id: bytes) -> str:
    return row_id.decode("utf-8", "surrogatepass")


def _to_disk(path: Path) -> None:
    """Wait until a file's content is on disk, so that a power failure does not leave the name with less content."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LoaderError(f"{name}: the sorted ids cannot be read ({error}); delete the file", file=name) from error


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        reason = f"{name}: ids cannot be sorted there ({error}); free some space, or name a folder in SQLITE_TMPDIR"
        raise LoaderError(reason, file=name) from error
