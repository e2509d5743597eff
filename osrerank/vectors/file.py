"""Store records in LMDB files that the processes of a machine share, with many readers and one writer at a time.

Each file is a generation. New records go to the youngest generation. When it has half of the maximum bytes, or half of
the maximum age, a new generation is created, and only the two youngest are kept. So reads never write, and the store
never exceeds its maximum size.
"""

import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import lmdb

from osrerank._pause import Result
from osrerank._platform import ForkGate, fork_safe_lock, renew_after_fork
from osrerank.vectors.lmdb_file import DAMAGES, check_length, is_damage, open_lmdb
from osrerank.vectors.store import PAUSE_S, Guard, Size

NAME, PATTERN = "vectors-{:06d}.lmdb", f"vectors-{6 * '[0-9]'}.lmdb"
PRUNED = "pruned-{}"
"""The folder into which a process copies records while it prunes."""
GENERATIONS = 2
"""The number of generations that are kept."""
CREATED = b"created"
"""The key of the time at which a generation was created, in seconds; the keys of records are longer."""
POSITION = b"position-"
"""The prefix of the keys under which builds store their positions."""
MOUNTS = Path("/proc/self/mounts")
REMOTE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre", "afs"})
"""The network file systems; LMDB does not support files that several machines map."""

IN_LMDB = ForkGate()
"""Entered before a file is opened, read, written or closed, because a child that is forked meanwhile could not open it.

It is entered after the lock for writing, which `FileStore.prune` holds for long, and before the lock for opening.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Generation:
    """An open LMDB file.

    Attributes:
        file: the file's path.
        inode: the file's inode, by which it differs from a later file of the same name.
        created_s: the time at which the generation was created, in seconds of the wall clock.
        environment: LMDB's environment. Python closes it when nothing refers to it, so never while a thread reads.
        page_bytes: the size of the file's pages.
    """

    file: Path
    inode: int
    created_s: float
    environment: lmdb.Environment
    page_bytes: int


class FileStore:
    """A store in a folder, for all processes of one user. Safe to use from many threads, and after a fork.

    A process may have only one store of a folder, which `file_store` returns. A damaged file is deleted, and its
    records count as missing.

    Args:
        folder: the folder; it is created if it does not exist, and only its user can read it.
        max_bytes: the maximum size of all files together, in bytes.
        ttl_s: the maximum age of a record, in seconds.
        pause_s: the pause after a failure of reading, or of writing, in seconds.
        clock: returns the seconds of the wall clock, which all processes share.
    """

    name = "file"

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        ttl_s: float,
        pause_s: float = PAUSE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._clock = clock
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._guard = Guard(self.name, str(folder), pause_s)
        self._generations: tuple[_Generation, ...] = ()
        self._changed_ns = -1
        self._opening, self._writing = threading.RLock(), threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, close the files that the parent opened; the first use opens them again.

        Closing waits for threads that use LMDB. If the fork could not wait for them, the child leaves the files open.
        """
        self._opening, self._writing = threading.RLock(), threading.Lock()
        for generation in self._generations if IN_LMDB.was_empty else ():
            generation.environment.close()
        self._generations, self._changed_ns = (), -1

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read.attempt(lambda: self._retry(lambda: self._read(keys)), {})

    def write(self, records: Mapping[bytes, bytes]) -> int:
        if not records:
            return 0
        return self._guard.write.attempt(lambda: self._retry(lambda: self._write(records)), 0)

    def files(self) -> tuple[str, ...]:
        """Return the names of the files whose records are read; a new file never gets the name of a deleted one."""
        with self._raising(), IN_LMDB:
            now_s = self._clock()
            generations = self._open()
            return tuple(
                generation.file.name for generation in generations if now_s - generation.created_s <= self._ttl_s
            )

    def size(self) -> Size:
        with self._raising():
            return self._size()

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        with self._raising():
            return self._prune(keys_to_keep)

    def drop(self) -> int:
        with self._raising():
            return self._drop()

    def _raising(self) -> AbstractContextManager[None]:
        return self._guard.translate_errors(OSError, lmdb.Error)

    def close(self) -> None:
        with IN_LMDB, self._opening:
            self._generations, self._changed_ns = (), -1

    def _retry(self, call: Callable[[], Result]) -> Result:
        """Return a call's result; repeat the call if a file was discarded, or if another process has grown it."""
        for _ in range(GENERATIONS):
            try:
                return call()
            except DAMAGES:
                continue
            except lmdb.MapResizedError:
                self.close()
        return call()  # outside the handler, because the exception refers to files that were open

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with IN_LMDB:
            return self._read_generations(self._open(), keys)

    def _read_generations(self, generations: Iterable[_Generation], keys: Sequence[bytes]) -> dict[bytes, bytes]:
        records: dict[bytes, bytes] = {}
        for generation in generations:
            if self._clock() - generation.created_s > self._ttl_s:
                continue
            with self._use(generation) as environment, environment.begin() as transaction:
                pairs = ((key, transaction.get(key)) for key in keys if key not in records)
                records |= {key: record for key, record in pairs if record is not None}
        return records

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        with self._writing, IN_LMDB:
            generations = self._open(create=True)
            if not generations or self._clock() - generations[0].created_s > self._ttl_s / 2:
                generations = self._begin()
            try:
                self._write_to(generations[0], records)
            except lmdb.MapFullError:
                self._write_to(self._begin()[0], records)
        return len(records)

    def _write_to(self, generation: _Generation, records: Mapping[bytes, bytes]) -> None:
        with self._use(generation) as environment:
            _put(environment, records)

    @contextmanager
    def _use(self, generation: _Generation) -> Iterator[lmdb.Environment]:
        """Yield a generation's environment; if the file turns out to be damaged, discard it and raise the error."""
        try:
            yield generation.environment
        except DAMAGES as error:
            with self._opening:
                if generation in self._generations:  # no other thread has discarded it
                    self._generations = tuple(other for other in self._generations if other is not generation)
                    self._discard(generation.file, generation.inode, error)
                    self._changed_ns = -1
            raise

    def _size(self) -> Size:
        with IN_LMDB:
            records = sum(map(_count, self._open()))
        return Size(records, sum(file.stat().st_size for file in self.folder.glob(PATTERN)), self._max_bytes)

    def _prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        """Copy records to a new folder, dated like the oldest generation; then replace the old files by the new ones.

        A failure before the replacement changes nothing.
        """
        with self._writing:
            with IN_LMDB:
                generations = self._open()
            if not generations:
                return 0
            folder = self.folder / PRUNED.format(os.getpid())
            copy = FileStore(folder, max_bytes=self._max_bytes, ttl_s=self._ttl_s, clock=self._clock)
            try:
                for keys in keys_to_keep:
                    with IN_LMDB:
                        records = self._read_generations(generations, keys)
                    if records:
                        copy._write(records)
                count = copy._size().records
                files = copy._finish(min(generation.created_s for generation in generations))
                self._replace_files(files)
                return count
            finally:
                shutil.rmtree(copy.folder, ignore_errors=True)

    def _finish(self, created_s: float) -> list[Path]:
        """Set the creation time of the generations, and close them; return their files, the oldest first."""
        with IN_LMDB:
            generations = self._open()
            for generation in generations:
                _put(generation.environment, {CREATED: str(created_s).encode()})
                generation.environment.close()
            self._generations = ()
        return [generation.file for generation in reversed(generations)]

    def _replace_files(self, files: Sequence[Path]) -> None:
        """Move files into the folder as the youngest generations, and delete all other generations."""
        with IN_LMDB, self._opening:
            number = max((_number(generation.file) for generation in self._open()), default=0) + 1
            names = [NAME.format(number + offset) for offset in range(len(files))]
            for file, name in zip(files, names, strict=True):
                file.rename(self.folder / name)
            for file in self.folder.glob(PATTERN):
                if file.name not in names:
                    _delete(file)
            self._generations, self._changed_ns = (), -1

    def _drop(self) -> int:
        with self._writing, IN_LMDB:
            count = self._size().records
            self._begin(keep=1)
        return count

    def _open(self, *, create: bool = False) -> tuple[_Generation, ...]:
        """Return the generations, the youngest first; open them again if the folder has changed."""
        if create and not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opening:
            try:
                changed_ns = self.folder.stat().st_mtime_ns
            except FileNotFoundError:
                self._generations, self._changed_ns = (), -1
                return ()
            if changed_ns != self._changed_ns or not all(map(self._is_whole, self._generations)):
                _refuse_remote(self.folder)
                self._generations = tuple(self._open_files())
                self._changed_ns = self.folder.stat().st_mtime_ns  # opening may create a lock file
            return self._generations

    def _is_whole(self, generation: _Generation) -> bool:
        """Return whether an open file has all of its pages; reading a file that was cut short would end the process."""
        try:
            check_length(generation.environment, generation.page_bytes, generation.file)
        except lmdb.CorruptedError:
            return False
        return True

    def _open_files(self) -> Iterator[_Generation]:
        """Open the files and yield their generations, the youngest first; discard damaged files."""
        for file in sorted(self.folder.glob(PATTERN), reverse=True)[:GENERATIONS]:
            with suppress(FileNotFoundError):  # another process has deleted it
                inode = file.stat().st_ino
                try:
                    yield self._open_file(file)
                except lmdb.Error as error:
                    if not is_damage(error, file):
                        raise
                    yield from self._discard(file, inode, error)

    def _discard(self, file: Path, inode: int, error: lmdb.Error) -> Sequence[_Generation]:
        """Delete a damaged file. If it was the youngest, begin a new generation, and return it in a list.

        Other processes that have the file open notice that the folder changed. They cannot confuse a new file with it,
        because no number is used again.
        """
        number = _number(file)
        youngest = max(map(_number, self.folder.glob(PATTERN)), default=number)
        new = [self._open_file(self.folder / NAME.format(number + 1))] if youngest == number else []
        with suppress(FileNotFoundError):  # another process was faster
            if file.stat().st_ino == inode:
                file.unlink()
                file.with_name(f"{file.name}-lock").unlink(missing_ok=True)
                reason = f"{error}".removeprefix(f"{file}: ")
                logger.warning(
                    "[vectors-damaged] deleted damaged file %s; its vectors are computed again: %s", file, reason
                )
        return new

    def _open_file(self, file: Path) -> _Generation:
        """Return a file's generation; do not open a file that is open, because LMDB forbids opening it twice."""
        if file.exists():
            for generation in self._generations:
                if (generation.file, generation.inode) == (file, file.stat().st_ino):
                    check_length(generation.environment, generation.page_bytes, file)
                    return generation
        environment = open_lmdb(file, self._max_bytes // GENERATIONS)
        try:
            created_s = self._read_created_s(environment)
        except BaseException:
            environment.close()
            raise
        return _Generation(file, file.stat().st_ino, created_s, environment, environment.stat()["psize"])

    def _read_created_s(self, environment: lmdb.Environment) -> float:
        """Return the creation time of a generation; write the current time into a new file."""
        with environment.begin() as transaction:
            created = transaction.get(CREATED)
        if created is None:
            with environment.begin(write=True) as transaction:
                transaction.put(CREATED, str(self._clock()).encode(), overwrite=False)
                created = transaction.get(CREATED, b"0")
        try:
            return float(created)
        except ValueError as error:
            raise lmdb.CorruptedError("its creation time is not a number") from error

    def _begin(self, keep: int = GENERATIONS) -> tuple[_Generation, ...]:
        """Begin a generation, and delete all but the ``keep`` youngest; return the generations that are left."""
        with self._opening:
            older = self._open(create=True)
            youngest = self._open_file(self.folder / NAME.format(_number(older[0].file) + 1 if older else 1))
            self._generations = (youngest, *older)[:keep]
            files = {generation.file for generation in self._generations}
            for file in self.folder.glob(PATTERN):
                if file not in files:
                    _delete(file)
            self._changed_ns = self.folder.stat().st_mtime_ns
            return self._generations


_stores: "weakref.WeakValueDictionary[Path, FileStore]" = weakref.WeakValueDictionary()
_making = fork_safe_lock()


def file_store(folder: Path, *, max_bytes: int, ttl_s: float) -> FileStore:
    """Return this process's only store of a folder. The first call sets its maximum size and age."""
    resolved = folder.expanduser().resolve()
    with _making:
        store = _stores.get(resolved)
        if store is None:
            store = _stores[resolved] = FileStore(resolved, max_bytes=max_bytes, ttl_s=ttl_s)
        return store


def _number(file: Path) -> int:
    """Return the number in a generation's file name."""
    return int(file.stem.rpartition("-")[2])


def _count(generation: _Generation) -> int:
    """Return the number of records in a generation; its time and the positions of builds do not count."""
    with generation.environment.begin() as transaction, transaction.cursor() as cursor:
        cursor.set_range(POSITION)
        positions = takewhile(lambda key: key.startswith(POSITION), cursor.iternext(values=False))
        return int(transaction.stat()["entries"]) - 1 - sum(1 for _ in positions)


def _put(environment: lmdb.Environment, records: Mapping[bytes, bytes]) -> None:
    with environment.begin(write=True) as transaction:
        for key, record in records.items():
            transaction.put(key, record)


def _delete(file: Path) -> None:
    """Delete a generation's files; if the system refuses because they are open, a later call deletes them."""
    for path in (file, file.with_name(f"{file.name}-lock")):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _refuse_remote(folder: Path) -> None:
    """Check that other machines cannot use a folder.

    Raises:
        OSError: the folder is on a network file system.
    """
    if (kind := _file_system(folder)) in REMOTE_SYSTEMS:
        raise OSError(f"it is on a network file system ({kind}); set OSRERANK_VECTORS_FOLDER to a local folder")


def _file_system(folder: Path) -> str:
    """Return the type of a folder's file system; an empty string if it is unknown."""
    if not MOUNTS.exists():
        return ""
    lines = (line.split() for line in MOUNTS.read_text("utf-8", "replace").splitlines())
    mounts = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in lines}
    return next((mounts[path] for path in (folder, *folder.parents) if path in mounts), "")
