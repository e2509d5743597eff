"""Open LMDB files, and recognise damaged ones: the system kills a process that reads past the end of a mapped file."""

import os
import sys
from pathlib import Path

import lmdb

DAMAGES = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""The errors that LMDB raises for a damaged file, and for a file that it did not write."""
MAX_READERS = 1024
"""The most threads that read a file at a time, in all processes."""
LOCKS_BYTES = 64 * (MAX_READERS + 2)
"""The size of LMDB's lock file: a cache line for each reader, and two for the header."""
META_PAGES = 2
"""How many meta pages a file begins with; LMDB maps at least these."""
HEAD_BYTES = 64
"""How many bytes at the start of a file are searched for `MAGIC`."""
MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)
"""A number in each meta page; the version of the file format follows it."""
VERSIONS = frozenset({1, 3})
"""The versions of the file format of LMDB 0.9 and 1.0."""


def open_lmdb(file: Path, max_bytes: int) -> lmdb.Environment:
    """Open a file for reading and writing; create it if it does not exist.

    Args:
        file: the file; LMDB keeps a lock file beside it.
        max_bytes: the file's maximum size; for a file that is already larger, its current size.

    Raises:
        OSError: the disk is full.
        lmdb.CorruptedError: the file was cut short.
        lmdb.Error: the file cannot be opened; `is_damage` says whether it is damaged.
    """
    _reserve_locks(file.with_name(f"{file.name}-lock"))
    environment = lmdb.open(
        str(file),
        subdir=False,
        map_size=max(max_bytes, file.stat().st_size if file.exists() else 0),
        max_readers=MAX_READERS,
        max_spare_txns=0,  # after a fork, closing would free the slot of the parent's transaction
        mode=0o600,
        metasync=False,
        readahead=False,
    )
    try:
        check_length(environment, environment.stat()["psize"], file)
        environment.reader_check()  # frees the reader slots of killed processes
    except BaseException:
        environment.close()
        raise
    return environment


def _reserve_locks(lock_file: Path) -> None:
    """Reserve disk space for the lock file: LMDB maps it, and on a full disk the system would kill the process."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, LOCKS_BYTES)
    finally:
        os.close(handle)


def check_length(environment: lmdb.Environment, page_bytes: int, file: Path) -> None:
    """Raise an error if an open file was cut short, so that it lacks pages that its meta pages count.

    LMDB always writes a file's last page, unless records are deleted one by one, which osrerank never does.

    Args:
        environment: the open file.
        page_bytes: the size of its pages.
        file: its path.

    Raises:
        lmdb.CorruptedError: the file was cut short.
    """
    needed_bytes = META_PAGES * page_bytes
    try:
        size = file.stat().st_size
        if size >= needed_bytes:
            needed_bytes = (environment.info()["last_pgno"] + 1) * page_bytes
        if size < needed_bytes:  # unless a writer has grown the file meanwhile
            size = file.stat().st_size
    except FileNotFoundError:  # another process has deleted it
        return
    if size < needed_bytes:
        raise lmdb.CorruptedError(f"it was cut to {size} bytes, and its pages take {needed_bytes}")


def is_damage(error: lmdb.Error, file: Path) -> bool:
    """Return whether an error means that the file is damaged, or that LMDB did not write it."""
    return isinstance(error, DAMAGES) or _version(file) not in VERSIONS


def _version(file: Path) -> int:
    """Return the version of a file's format; 0 if the file does not begin with a meta page."""
    with file.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    _, magic, version = head.partition(MAGIC)
    return int.from_bytes(version[:4], sys.byteorder) if magic else 0
