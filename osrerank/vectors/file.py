"""Store records in LMDB files that a machine's processes share, with many readers and one writer at a time.

The files are generations. Records are written to the youngest; when that has half of the bytes allowed, or is half as
old as records may get, a new one is begun and all but two are deleted. So reading writes nothing, and the bound holds.
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

from osrerank._pause import Answer
from osrerank._platform import ForkGate, fork_safe_lock, renew_after_fork
from osrerank.vectors.lmdb_file import DAMAGES, check_length, is_damage, open_lmdb
from osrerank.vectors.store import REST_S, Guard, Size

NAME, PATTERN = "vectors-{:06d}.lmdb", f"vectors-{6 * '[0-9]'}.lmdb"
PRUNED = "pruned-{}"
"""Folder for the records that a process keeps while it prunes."""
GENERATIONS = 2
CREATED = b"created"
"""Key of the time at which a generation was begun, in seconds; records have longer keys."""
POSITION = b"position-"
"""Prefix of the keys of builds' positions."""
MOUNTS = Path("/proc/self/mounts")
REMOTE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre", "afs"})
"""Network file systems: LMDB does not support files that several machines map."""

IN_LMDB = ForkGate()
"""Held by all that opens, reads, writes or closes a file: a child that is forked meanwhile could not open it.

It is entered after the lock for writing, which a pruning holds for long, and before the lock for opening.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Generation:
    """An open LMDB file.

    Attributes:
        file: its path.
        inode: tells the file from a later one of the same name.
        created_s: when it was begun, in seconds of the wall clock.
        environment: LMDB's environment. It is closed when nothing refers to it, so never while another thread reads.
        page_bytes: size of the file's pages.
    """

    file: Path
    inode: int
    created_s: float
    environment: lmdb.Environment
    page_bytes: int


class FileStore:
    """Records in a folder, used by all processes of one user. Safe to use from many threads, and after a fork.

    A process may have only one for each folder: `file_store` returns it. A damaged file is deleted, and its records
    count as missing.

    Args:
        folder: created if missing, for this user only.
        most_bytes: the most bytes that all files together may take.
        ttl_s: most seconds that a record is kept.
        rest_s: pause after a failure of reading, or of writing, in seconds.
        clock: returns seconds of the wall clock, which processes share.
    """

    name = "file"

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int,
        ttl_s: float,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._clock = clock
        self._most = most_bytes
        self._ttl_s = ttl_s
        self._guard = Guard(self.name, str(folder), rest_s)
        self._generations: tuple[_Generation, ...] = ()
        self._changed_ns = -1
        self._opening, self._writing = threading.RLock(), threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, close what the parent opened; the first use reopens it.

        Closing waits for threads in LMDB, so it is left out if the fork could not wait for them. Python never frees
        what these threads refer to.
        """
        self._opening, self._writing = threading.RLock(), threading.Lock()
        for generation in self._generations if IN_LMDB.was_empty else ():
            generation.environment.close()
        self._generations, self._changed_ns = (), -1

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read.attempt(lambda: self._retried(lambda: self._read(keys)), {})

    def write(self, records: Mapping[bytes, bytes]) -> int:
        if not records:
            return 0
        return self._guard.write.attempt(lambda: self._retried(lambda: self._write(records)), 0)

    def files(self) -> tuple[str, ...]:
        """Return the names of the files whose records are read; no name is given twice."""
        with self._asked(), IN_LMDB:
            now_s = self._clock()
            return tuple(one.file.name for one in self._open() if now_s - one.created_s <= self._ttl_s)

    def size(self) -> Size:
        with self._asked():
            return self._size()

    def prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        with self._asked():
            return self._prune(kept)

    def drop(self) -> int:
        with self._asked():
            return self._drop()

    def _asked(self) -> AbstractContextManager[None]:
        return self._guard.asked(OSError, lmdb.Error)

    def close(self) -> None:
        with IN_LMDB, self._opening:
            self._generations, self._changed_ns = (), -1

    def _retried(self, call: Callable[[], Answer]) -> Answer:
        """Return the call's result; retry if a file was discarded, or if a process with a larger bound has grown it."""
        for _ in range(GENERATIONS):
            try:
                return call()
            except DAMAGES:
                continue
            except lmdb.MapResizedError:
                self.close()
        return call()  # outside the handler: the exception refers to what was open

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with IN_LMDB:
            return self._found(self._open(), keys)

    def _found(self, generations: Iterable[_Generation], keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for generation in generations:
            if self._clock() - generation.created_s > self._ttl_s:
                continue
            with self._used(generation) as environment, environment.begin() as reading:
                records = ((key, reading.get(key)) for key in keys if key not in found)
                found |= {key: record for key, record in records if record is not None}
        return found

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        with self._writing, IN_LMDB:
            generations = self._open(make=True)
            if not generations or self._clock() - generations[0].created_s > self._ttl_s / 2:
                generations = self._begin()
            try:
                self._put(generations[0], records)
            except lmdb.MapFullError:
                self._put(self._begin()[0], records)
        return len(records)

    def _put(self, generation: _Generation, records: Mapping[bytes, bytes]) -> None:
        with self._used(generation) as environment:
            _put(environment, records)

    @contextmanager
    def _used(self, generation: _Generation) -> Iterator[lmdb.Environment]:
        """Yield a generation's environment; discard the generation if it turns out to be damaged, and raise."""
        try:
            yield generation.environment
        except DAMAGES as error:
            with self._opening:
                if generation in self._generations:  # no other thread has discarded it
                    self._generations = tuple(one for one in self._generations if one is not generation)
                    self._discard(generation.file, generation.inode, error)
                    self._changed_ns = -1
            raise

    def _size(self) -> Size:
        with IN_LMDB:
            records = sum(map(_count, self._open()))
        return Size(records, sum(file.stat().st_size for file in self.folder.glob(PATTERN)), self._most)

    def _prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        """Copy the kept records to a new folder, dated as the oldest generation, and replace the old files by it.

        Nothing changes before that, so a failure leaves everything as it was.
        """
        with self._writing:
            with IN_LMDB:
                before = self._open()
            if not before:
                return 0
            copy = FileStore(
                self.folder / PRUNED.format(os.getpid()), most_bytes=self._most, ttl_s=self._ttl_s, clock=self._clock
            )
            try:
                for keys in kept:
                    with IN_LMDB:
                        records = self._found(before, keys)
                    if records:
                        copy._write(records)
                count = copy._size().records
                files = copy._finished(min(generation.created_s for generation in before))
                self._replace(files)
                return count
            finally:
                shutil.rmtree(copy.folder, ignore_errors=True)

    def _finished(self, created_s: float) -> list[Path]:
        """Set the time at which all generations were begun, close them, and return their files, the oldest first."""
        with IN_LMDB:
            generations = self._open()
            for generation in generations:
                _put(generation.environment, {CREATED: str(created_s).encode()})
                generation.environment.close()
            self._generations = ()
        return [generation.file for generation in reversed(generations)]

    def _replace(self, files: Sequence[Path]) -> None:
        """Move files here as the youngest generations, and delete all others."""
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

    def _open(self, *, make: bool = False) -> tuple[_Generation, ...]:
        """Return the generations, the youngest first, reopened if the folder has changed."""
        if make and not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opening:
            try:
                changed_ns = self.folder.stat().st_mtime_ns
            except FileNotFoundError:
                self._generations, self._changed_ns = (), -1
                return ()
            if changed_ns != self._changed_ns or not all(map(self._is_whole, self._generations)):
                _refuse_remote(self.folder)
                self._generations = tuple(self._usable())
                self._changed_ns = self.folder.stat().st_mtime_ns  # opening may make a file for locks
            return self._generations

    def _is_whole(self, generation: _Generation) -> bool:
        """Return whether an open file was not cut short meanwhile, before anything is read past its end."""
        try:
            check_length(generation.environment, generation.page_bytes, generation.file)
        except lmdb.CorruptedError:
            return False
        return True

    def _usable(self) -> Iterator[_Generation]:
        """Yield the generations, the youngest first; discard the damaged ones."""
        for file in sorted(self.folder.glob(PATTERN), reverse=True)[:GENERATIONS]:
            with suppress(FileNotFoundError):  # another process has deleted it
                inode = file.stat().st_ino
                try:
                    yield self._opened(file)
                except lmdb.Error as error:
                    if not is_damage(error, file):
                        raise
                    yield from self._discard(file, inode, error)

    def _discard(self, file: Path, inode: int, error: lmdb.Error) -> Sequence[_Generation]:
        """Delete a damaged file; return the generation that was begun after it if it was the youngest.

        Processes that have it open notice the change of the folder. They never take a new file for this one, because
        its number is not given again.
        """
        number = _number(file)
        youngest = max(map(_number, self.folder.glob(PATTERN)), default=number)
        new = [self._opened(self.folder / NAME.format(number + 1))] if youngest == number else []
        with suppress(FileNotFoundError):  # another process was faster
            if file.stat().st_ino == inode:
                file.unlink()
                file.with_name(f"{file.name}-lock").unlink(missing_ok=True)
                reason = f"{error}".removeprefix(f"{file}: ")
                logger.warning(
                    "[vectors-damaged] deleted damaged file %s; its vectors are computed again: %s", file, reason
                )
        return new

    def _opened(self, file: Path) -> _Generation:
        """Return a file's generation, opened unless it is open: LMDB does not allow opening a file twice."""
        if file.exists():
            for generation in self._generations:
                if (generation.file, generation.inode) == (file, file.stat().st_ino):
                    check_length(generation.environment, generation.page_bytes, file)
                    return generation
        environment = open_lmdb(file, self._most // GENERATIONS)
        try:
            created_s = self._created_s(environment)
        except BaseException:
            environment.close()
            raise
        return _Generation(file, file.stat().st_ino, created_s, environment, environment.stat()["psize"])

    def _created_s(self, environment: lmdb.Environment) -> float:
        """Return when a generation was begun; if the file has no time, that is now."""
        with environment.begin() as reading:
            created = reading.get(CREATED)
        if created is None:
            with environment.begin(write=True) as writing:
                writing.put(CREATED, str(self._clock()).encode(), overwrite=False)
                created = writing.get(CREATED, b"0")
        try:
            return float(created)
        except ValueError as error:
            raise lmdb.CorruptedError("the time at which it was begun is not a number") from error

    def _begin(self, keep: int = GENERATIONS) -> tuple[_Generation, ...]:
        """Begin a generation, and delete all but the ``keep`` youngest."""
        with self._opening:
            before = self._open(make=True)
            young = self._opened(self.folder / NAME.format(_number(before[0].file) + 1 if before else 1))
            self._generations = (young, *before)[:keep]
            self._delete_others()
            return self._generations

    def _delete_others(self) -> None:
        """Delete the generations that are not used any more."""
        kept = {generation.file for generation in self._generations}
        for file in self.folder.glob(PATTERN):
            if file not in kept:
                _delete(file)
        self._changed_ns = self.folder.stat().st_mtime_ns


_stores: "weakref.WeakValueDictionary[Path, FileStore]" = weakref.WeakValueDictionary()
_making = fork_safe_lock()


def file_store(folder: Path, *, most_bytes: int, ttl_s: float) -> FileStore:
    """Return this process's one store of a folder; the first call sets its bounds."""
    resolved = folder.expanduser().resolve()
    with _making:
        store = _stores.get(resolved)
        if store is None:
            store = _stores[resolved] = FileStore(resolved, most_bytes=most_bytes, ttl_s=ttl_s)
        return store


def _number(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


def _count(generation: _Generation) -> int:
    """Return how many records a file has, without its time and the positions of builds."""
    with generation.environment.begin() as reading, reading.cursor() as cursor:
        cursor.set_range(POSITION)
        others = sum(1 for _ in takewhile(lambda key: key.startswith(POSITION), cursor.iternext(values=False)))
        return int(reading.stat()["entries"]) - 1 - others


def _put(environment: lmdb.Environment, records: Mapping[bytes, bytes]) -> None:
    with environment.begin(write=True) as writing:
        for key, record in records.items():
            writing.put(key, record)


def _delete(file: Path) -> None:
    """Delete a generation; if it is open and the system refuses, a later call does."""
    for path in (file, file.with_name(f"{file.name}-lock")):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _refuse_remote(folder: Path) -> None:
    """Raise an error for a folder that other machines may use, too.

    Raises:
        OSError: it is on a network file system.
    """
    if (kind := _file_system(folder)) in REMOTE_SYSTEMS:
        raise OSError(f"it is on a network file system ({kind}); name a local folder with OSRERANK_VECTORS_FOLDER")


def _file_system(folder: Path) -> str:
    """Return the kind of a folder's file system, empty if unknown."""
    if not MOUNTS.exists():
        return ""
    lines = (line.split() for line in MOUNTS.read_text("utf-8", "replace").splitlines())
    mounts = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in lines}
    return next((mounts[path] for path in (folder, *folder.parents) if path in mounts), "")
