"""Store document vectors in LMDB files that the processes of a machine share, within a maximum size and age.

LMDB allows many readers and one writer at a time. There are two files, each with a generation of records, such as
``vectors-000007.lmdb`` and the younger ``vectors-000008.lmdb``. Writes go to the younger file. When it reaches half of
the maximum size or age, a new file is created, and the older file is deleted. So no record needs a time of last use.
"""

import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import lmdb

from osrerank._pause import Result
from osrerank._platform import ForkGate, fork_safe_lock, renew_after_fork
from osrerank.vectors.lmdb_file import DAMAGE_ERRORS, check_length, is_damage, open_lmdb
from osrerank.vectors.store import Guard, Size

FILE_NAME = "vectors-{:06d}.lmdb"
"""The name of a generation's file, with a number that grows from generation to generation."""
FILE_PATTERN = f"vectors-{6 * '[0-9]'}.lmdb"
"""The glob pattern of the names of generations."""
PRUNE_FOLDER = "pruned-{}"
"""The folder into which a process copies records while it prunes. The process id is filled in."""
MAX_GENERATIONS = 2
"""The maximum number of files. Each has half of the maximum size."""
CREATED_KEY = b"created"
"""The key of the creation time of a generation, in seconds since the epoch. The keys of records are longer."""
BUILD_PREFIX = b"position-"
"""The prefix of the keys under which builds store their progress and their fields."""
MOUNTS = Path("/proc/self/mounts")
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre", "afs")
"""Types of file systems on which LMDB does not work, because several machines could map the same file."""

LMDB_GATE = ForkGate()
"""Delays forks while a thread uses LMDB, because a child that is forked during a call cannot open the file.

The order of locks is: a store's `_write_lock`, the gate, the store's `_open_lock`. The gate comes second because
`FileStore.prune` holds `_write_lock` for a long time.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Generation:
    """An open LMDB file.

    Attributes:
        file: the path of the file.
        inode: the inode of the file. A later file of the same name has another inode.
        created_at_s: when the generation was created, in seconds since the epoch.
        environment: LMDB's open file. It is closed when nothing refers to it any more, so never during a read.
        page_bytes: the size of the file's pages.
    """

    file: Path
    inode: int
    created_at_s: float
    environment: lmdb.Environment
    page_bytes: int


class FileStore:
    """A store in a folder, for all processes of one user. Safe to use from many threads, and after a fork.

    A process must not open a folder twice, so get the store of a folder from `file_store`. Damaged files are deleted,
    and their vectors are computed again.

    Args:
        folder: the folder. It is created by the first write, and only its owner can read it.
        max_bytes: the maximum total size of the files, in bytes.
        ttl_s: the maximum age of a record, in seconds.
        clock: a function that returns the seconds since the epoch.
    """

    name = "file"

    def __init__(self, folder: Path, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._clock = folder, clock
        self._max_bytes, self._ttl_s = max_bytes, ttl_s
        self._guard = Guard(self.name, str(folder), OSError, lmdb.Error)
        self._generations: tuple[_Generation, ...] = ()
        self._changed_at_ns = -1  # the modification time of the folder when it was last listed; -1 if never
        self._open_lock, self._write_lock = threading.RLock(), threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Close the parent's files in a forked child. The child opens them again when it uses them.

        The files stay open if another thread used LMDB during the fork, because closing would wait for this thread.
        """
        self._open_lock, self._write_lock = threading.RLock(), threading.Lock()
        if LMDB_GATE.was_empty:
            for generation in self._generations:
                generation.environment.close()
        self._forget_files()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read_pause.attempt(lambda: self._retry(lambda: self._read(keys)), default={})

    def write(self, records: Mapping[bytes, bytes]) -> int:
        if not records:
            return 0
        return self._guard.write_pause.attempt(lambda: self._retry(lambda: self._write(records)), default=0)

    def files(self) -> tuple[str, ...]:
        """Return the names of the files that are read. The name of a deleted file is never used again."""
        with self._guard.translate_errors(), LMDB_GATE:
            return tuple(generation.file.name for generation in self._open() if not self._is_expired(generation))

    def size(self) -> Size:
        with self._guard.translate_errors():
            with LMDB_GATE:
                n_records = sum(map(_count_records, self._open()))
            stored_bytes = sum(file.stat().st_size for file in self.folder.glob(FILE_PATTERN))
        return Size(n_records, stored_bytes, self._max_bytes)

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        with self._guard.translate_errors():
            return self._prune(keys_to_keep)

    def drop(self) -> int:
        with self._guard.translate_errors(), self._write_lock, LMDB_GATE:
            n_records = self.size().records
            self._start_generation(max_count=1)  # deletes the files of all other generations
        return n_records

    def close(self) -> None:
        with LMDB_GATE, self._open_lock:
            self._forget_files()

    def _forget_files(self) -> None:
        """Forget the open files, so that the next call lists the folder again."""
        self._generations, self._changed_at_ns = (), -1

    def _retry(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call. Retry it if a damaged file was deleted, or another process extended a file."""
        for _ in range(MAX_GENERATIONS):  # each of the files might be damaged
            try:
                return call()
            except DAMAGE_ERRORS:
                continue
            except lmdb.MapResizedError:
                self.close()
        return call()  # not in an `except` clause, where the error would still refer to the old environments

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with LMDB_GATE:
            return self._read_generations(self._open(), keys)

    def _is_expired(self, generation: _Generation) -> bool:
        return self._clock() - generation.created_at_s > self._ttl_s

    def _read_generations(self, generations: Iterable[_Generation], keys: Sequence[bytes]) -> dict[bytes, bytes]:
        records: dict[bytes, bytes] = {}
        for generation in generations:
            if self._is_expired(generation):
                continue
            with self._use(generation) as environment, environment.begin() as transaction:
                pairs = ((key, transaction.get(key)) for key in keys if key not in records)
                records |= {key: record for key, record in pairs if record is not None}
        return records

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        with self._write_lock, LMDB_GATE:
            generations = self._open(create=True)  # the youngest first
            if not generations or self._clock() - generations[0].created_at_s > self._ttl_s / 2:
                generations = self._start_generation()
            try:
                self._write_to(generations[0], records)
            except lmdb.MapFullError:
                self._write_to(self._start_generation()[0], records)
        return len(records)

    def _write_to(self, generation: _Generation, records: Mapping[bytes, bytes]) -> None:
        with self._use(generation) as environment:
            _put(environment, records)

    @contextmanager
    def _use(self, generation: _Generation) -> Iterator[lmdb.Environment]:
        """Yield the environment of a generation. If the file turns out to be damaged, delete it and raise the error."""
        try:
            yield generation.environment
        except DAMAGE_ERRORS as error:
            with self._open_lock:
                if generation in self._generations:  # no other thread has discarded it
                    self._generations = tuple(other for other in self._generations if other is not generation)
                    self._discard(generation.file, generation.inode, error)
                    self._changed_at_ns = -1
            raise

    def _prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        """Copy the records to keep into new files, and replace the old files by them.

        The new files get the creation time of the oldest file. If copying fails, the store is unchanged.
        """
        with self._write_lock:
            with LMDB_GATE:
                generations = self._open()
            if not generations:
                return 0
            folder = self.folder / PRUNE_FOLDER.format(os.getpid())
            new_store = FileStore(folder, max_bytes=self._max_bytes, ttl_s=self._ttl_s, clock=self._clock)
            try:
                for keys in keys_to_keep:
                    with LMDB_GATE:
                        records = self._read_generations(generations, keys)
                    if records:
                        new_store._write(records)
                n_records = new_store.size().records
                created_at_s = min(generation.created_at_s for generation in generations)
                self._replace_files(new_store._close_with_age(created_at_s))
                return n_records
            finally:
                shutil.rmtree(new_store.folder, ignore_errors=True)

    def _close_with_age(self, created_at_s: float) -> list[Path]:
        """Set the creation time of all generations, and close their files. Return the files, the oldest first."""
        with LMDB_GATE:
            generations = self._open()
            for generation in generations:
                _put(generation.environment, {CREATED_KEY: str(created_at_s).encode()})
                generation.environment.close()
            self._generations = ()
        return [generation.file for generation in reversed(generations)]

    def _replace_files(self, files: Sequence[Path]) -> None:
        """Replace all generations by files of another folder. The oldest file comes first."""
        with LMDB_GATE, self._open_lock:
            first_number = max((_parse_number(generation.file) for generation in self._open()), default=0) + 1
            names = [FILE_NAME.format(number) for number, _ in enumerate(files, start=first_number)]
            for file, name in zip(files, names, strict=True):
                file.rename(self.folder / name)
            for file in self.folder.glob(FILE_PATTERN):
                if file.name not in names:
                    _delete(file)
            self._forget_files()

    def _open(self, *, create: bool = False) -> tuple[_Generation, ...]:
        """Return the generations, the youngest first. Open them again if another process changed the folder."""
        if create and not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._open_lock:
            try:
                changed_at_ns = self.folder.stat().st_mtime_ns
            except FileNotFoundError:
                self._forget_files()
                return ()
            if changed_at_ns != self._changed_at_ns or not all(map(self._has_all_pages, self._generations)):
                _check_file_system(self.folder)
                self._generations = tuple(self._open_files())
                # Opening a file can create a lock file, which changes the folder again.
                self._changed_at_ns = self.folder.stat().st_mtime_ns
            return self._generations

    def _has_all_pages(self, generation: _Generation) -> bool:
        """Return whether an open file still has all of its pages. Reading missing pages would kill the process."""
        try:
            check_length(generation.environment, generation.page_bytes, generation.file)
        except lmdb.CorruptedError:
            return False
        return True

    def _open_files(self) -> Iterator[_Generation]:
        """Open the files and yield their generations, the youngest first. Damaged files are deleted."""
        for file in sorted(self.folder.glob(FILE_PATTERN), reverse=True)[:MAX_GENERATIONS]:
            with suppress(FileNotFoundError):  # another process has deleted it
                inode = file.stat().st_ino
                try:
                    yield self._open_file(file)
                except lmdb.Error as error:
                    if not is_damage(error, file):
                        raise
                    yield from self._discard(file, inode, error)

    def _discard(self, file: Path, inode: int, error: lmdb.Error) -> Sequence[_Generation]:
        """Delete a damaged file. If it was the youngest, start a new generation, and return it in a list.

        The new generation ensures that the damaged file's name is never used again. Other processes may still have the
        damaged file open.
        """
        number = _parse_number(file)
        youngest_number = max(map(_parse_number, self.folder.glob(FILE_PATTERN)), default=number)
        is_youngest = number == youngest_number
        replacement = [self._open_file(self.folder / FILE_NAME.format(number + 1))] if is_youngest else []
        with suppress(FileNotFoundError):  # another process has deleted it
            if file.stat().st_ino == inode:
                file.unlink()
                file.with_name(f"{file.name}-lock").unlink(missing_ok=True)
                reason = f"{error}".removeprefix(f"{file}: ")
                logger.warning(
                    "[vectors-damaged] deleted damaged file %s; its vectors are computed again: %s", file, reason
                )
        return replacement

    def _open_file(self, file: Path) -> _Generation:
        """Return the generation of a file. An open file is not opened again, because LMDB forbids it."""
        if file.exists():
            for generation in self._generations:
                if (generation.file, generation.inode) == (file, file.stat().st_ino):
                    check_length(generation.environment, generation.page_bytes, file)
                    return generation
        environment = open_lmdb(file, self._max_bytes // MAX_GENERATIONS)
        try:
            created_at_s = self._read_creation_time(environment)
        except BaseException:
            environment.close()
            raise
        return _Generation(file, file.stat().st_ino, created_at_s, environment, environment.stat()["psize"])

    def _read_creation_time(self, environment: lmdb.Environment) -> float:
        """Return the creation time of a generation. In a new file, store the current time as its creation time."""
        with environment.begin() as transaction:
            created = transaction.get(CREATED_KEY)
        if created is None:
            with environment.begin(write=True) as transaction:
                transaction.put(CREATED_KEY, str(self._clock()).encode(), overwrite=False)
                created = transaction.get(CREATED_KEY, b"0")
        try:
            return float(created)
        except ValueError as error:
            raise lmdb.CorruptedError("the creation time is not a number") from error

    def _start_generation(self, max_count: int = MAX_GENERATIONS) -> tuple[_Generation, ...]:
        """Create a generation, delete all but the ``max_count`` youngest, and return these."""
        with self._open_lock:
            generations = self._open(create=True)
            number = _parse_number(generations[0].file) + 1 if generations else 1
            new = self._open_file(self.folder / FILE_NAME.format(number))
            self._generations = (new, *generations)[:max_count]
            files = {generation.file for generation in self._generations}
            for file in self.folder.glob(FILE_PATTERN):
                if file not in files:
                    _delete(file)
            self._changed_at_ns = self.folder.stat().st_mtime_ns
            return self._generations


_stores: "weakref.WeakValueDictionary[Path, FileStore]" = weakref.WeakValueDictionary()
_stores_lock = fork_safe_lock()


def file_store(folder: Path, *, max_bytes: int, ttl_s: float) -> FileStore:
    """Return this process's store of a folder. The first call for a folder sets the maximum size and age."""
    resolved = folder.expanduser().resolve()
    with _stores_lock:
        store = _stores.get(resolved)
        if store is None:
            store = _stores[resolved] = FileStore(resolved, max_bytes=max_bytes, ttl_s=ttl_s)
        return store


def _parse_number(file: Path) -> int:
    """Return the number in the file name of a generation."""
    return int(file.stem.rpartition("-")[2])


def _count_records(generation: _Generation) -> int:
    """Return the number of records, without the entries for the creation time and for the progress of builds."""
    with generation.environment.begin() as transaction, transaction.cursor() as cursor:
        cursor.set_range(BUILD_PREFIX)
        build_keys = takewhile(lambda key: key.startswith(BUILD_PREFIX), cursor.iternext(values=False))
        n_build_entries = sum(1 for _ in build_keys)
        return int(transaction.stat()["entries"]) - n_build_entries - 1  # 1 is the creation time


def _put(environment: lmdb.Environment, records: Mapping[bytes, bytes]) -> None:
    with environment.begin(write=True) as transaction:
        for key, record in records.items():
            transaction.put(key, record)


def _delete(file: Path) -> None:
    """Delete the files of a generation. On Windows, open files cannot be deleted, so a later call deletes them."""
    for path in (file, file.with_name(f"{file.name}-lock")):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _check_file_system(folder: Path) -> None:
    """Raise an `OSError` if a folder is on a network file system."""
    file_system = _read_file_system(folder)
    if file_system in NETWORK_FILE_SYSTEMS:
        raise OSError(
            f"the folder is on a network file system ({file_system}); set OSRERANK_VECTORS_FOLDER to a local folder"
        )


def _read_file_system(folder: Path) -> str:
    """Return the type of a folder's file system, or "" if it is unknown."""
    if not MOUNTS.exists():
        return ""
    # A line is "/dev/sda1 /home ext4 rw 0 0". A space in a path is written as \040.
    lines = (line.split() for line in MOUNTS.read_text("utf-8", "replace").splitlines())
    mounts = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in lines}
    return next((mounts[path] for path in (folder, *folder.parents) if path in mounts), "")
