"""Values by id in a file: what would grow with a collection's ids takes disk instead of memory.

SQLite appends the rows as they come and sorts them outside of memory, so that a hundred million take minutes, where as
many insertions in random order would take days. Its temporary files go to ``SQLITE_TMPDIR``, else ``TMPDIR``, else
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
"""Memory that SQLite takes for pages and for each run of a sort."""
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
    """What an id stands for.

    Attributes:
        id: may occur in several rows.
        number: the number of the line or record, from 1, which differs from row to row.
        value: an integer or a text.
    """

    id: str
    number: int
    value: int | str = 0


class Repeat(NamedTuple):
    """A row whose id came before: the id, and the numbers of its first row and of this one."""

    id: str
    first: int
    number: int


class IdTable:
    """Rows sorted by id, in a file; any thread may ask.

    Args:
        database: opened; closed when the table is not referred to any more.
        count: rows.
        name: the name of the file, for errors.
    """

    def __init__(self, database: sqlite3.Connection, count: int, name: str = "the temporary folder") -> None:
        self._database, self._count, self._name = database, count, name
        self._asking = threading.Lock()
        self.close = weakref.finalize(self, database.close)

    @classmethod
    def temporary(cls, rows: Iterable[IdRow]) -> "IdTable":
        """Sort rows into a file that is gone with the table; a small one stays in memory.

        Raises:
            LoaderError: there is no room for it.
        """
        return cls(*_sorted("", rows, ""))

    @classmethod
    def opened(cls, path: Path, key: str) -> "IdTable | None":
        """Return the table of a file, None where there is none or it was made with another key."""
        try:
            database = _read_only(path)
        except sqlite3.OperationalError:  # there is none, or no file
            return None
        try:
            _bound_memory(database)
            version, made_with, count = database.execute("SELECT version, key, count FROM origin").fetchone()
        except (sqlite3.Error, TypeError):  # another program's file, or not a whole one
            version, made_with, count = 0, "", 0
        if (version, made_with) == (VERSION, key):
            return cls(database, count, str(path))
        database.close()
        return None

    @classmethod
    def made(
        cls, path: Path, key: str, rows: Iterable[IdRow], *, check: Callable[["IdTable"], None] = lambda _table: None
    ) -> "IdTable":
        """Sort rows into a file, and return its table.

        Args:
            path: replaced as a whole, when the table is complete.
            key: what the rows were read from, in the state in which it is.
            rows: read once.
            check: called before the file has its name, so that a table that it refuses is not kept.

        Raises:
            LoaderError: there is no room for it.
        """
        try:
            handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
            os.close(handle)
        except OSError as error:
            raise LoaderError(f"{path.parent}: {error.strerror or error}", file=str(path)) from error
        part = Path(name)
        try:
            table = cls(*_sorted(str(part), rows, key))
            try:
                check(table)
            finally:
                table.close()
            _to_disk(part)
            try:
                part.replace(path)
            except OSError as error:
                raise LoaderError(f"{path}: {error.strerror or error}", file=str(path)) from error
        finally:
            part.unlink(missing_ok=True)
        database = _read_only(path)
        _bound_memory(database)
        return cls(database, len(table), str(path))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row_id: str) -> bool:
        return self.get(row_id) is not None

    def get(self, row_id: str) -> IdRow | None:
        """Return the first row of an id, None if it has none.

        Raises:
            LoaderError: the file is damaged.
        """
        with self._asking, _damage(self._name):
            found = self._database.execute(_FIRST, (_encoded(row_id),)).fetchone()
        return None if found is None else IdRow(row_id, *found)

    def repeated(self, most: int) -> list[Repeat]:
        """Return the first rows whose id another row had before, in the order of their numbers."""
        with self._asking, _errors("the temporary folder"):
            found = self._database.execute(_REPEATED, (most,)).fetchall()
        return [Repeat(_decoded(row_id), first, number) for row_id, first, number in found]


def scratch(path: str) -> sqlite3.Connection:
    """Open a database that nobody needs after a crash, with bounded memory; "" is a temporary one."""
    database = sqlite3.connect(path, check_same_thread=False)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
        database.execute(f"PRAGMA {pragma}")
    _bound_memory(database)
    return database


def _read_only(path: Path) -> sqlite3.Connection:
    """Open a file that is complete, and replaced rather than changed."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, check_same_thread=False)


def _bound_memory(database: sqlite3.Connection, schema: str = "main") -> None:
    database.execute(f"PRAGMA {schema}.cache_size = -{CACHE_KIB}")


def _sorted(path: str, rows: Iterable[IdRow], key: str) -> tuple[sqlite3.Connection, int]:
    """Return a database with the rows in order of their ids, and how many they are."""
    with _errors(path or "the temporary folder"), contextlib.ExitStack() as undone:
        database = undone.enter_context(contextlib.closing(scratch(path)))
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
    """Return an id as it is stored: it may have half of a surrogate pair, which SQLite's texts cannot."""
    return row_id.encode("utf-8", "surrogatepass")


def _decoded(row_id: bytes) -> str:
    return row_id.decode("utf-8", "surrogatepass")


def _to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk, so that its name never stands for less after a power failure."""
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
