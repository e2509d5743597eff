"""Open LMDB files, and recognise damaged ones: a process that reads past the end of a mapped file is killed."""

import os
import sys
from pathlib import Path

import lmdb

DAMAGES = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""What LMDB raises for a file that is damaged, or that is no LMDB file."""
MOST_READERS = 1024
"""Most threads that read at once, in all processes."""
LOCKS_BYTES = 64 * (MOST_READERS + 2)
"""The size of LMDB's file of locks: a cache line for each reader, and its own."""
META_PAGES = 2
"""LMDB keeps its two meta pages first, and maps at least these."""
HEAD_BYTES = 64
MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)
"""Number in each meta page; the version of the file's format follows it."""
VERSIONS = frozenset({1, 3})
"""Formats of LMDB 0.9 and 1.0."""


def open_lmdb(file: Path, most_bytes: int) -> lmdb.Environment:
    """Open a file for reading and writing, and create it if there is none.

    Args:
        file: the file; LMDB keeps a file for locks beside it.
        most_bytes: the file's maximum size; a file that is already larger keeps its size as its maximum.

    Raises:
        OSError: the disk is full.
        lmdb.CorruptedError: the file was cut short.
        lmdb.Error: it cannot be opened; `is_damage` tells whether the file itself is the cause.
    """
    _reserve(file.with_name(f"{file.name}-lock"))
    environment = lmdb.open(
        str(file),
        subdir=False,
        map_size=max(most_bytes, file.stat().st_size if file.exists() else 0),
        max_readers=MOST_READERS,
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


def _reserve(locks: Path) -> None:
    """Give LMDB's file of locks its space on the disk: LMDB maps it, and a full disk would end the process (SIGBUS)."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    handle = os.open(locks, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, LOCKS_BYTES)
    finally:
        os.close(handle)


def check_length(environment: lmdb.Environment, page_bytes: int, file: Path) -> None:
    """Raise an error if an open file was cut short: it lacks pages that its meta pages name.

    This relies on LMDB always writing a file's last page, which it does if records are never deleted one by one.

    Args:
        environment: the open file.
        page_bytes: size of its pages.
        file: its path.

    Raises:
        lmdb.CorruptedError: it was cut short.
    """
    least = META_PAGES * page_bytes
    try:
        size = file.stat().st_size
        if size >= least:
            least = (environment.info()["last_pgno"] + 1) * page_bytes
        if size < least:  # unless a writer has grown it meanwhile
            size = file.stat().st_size
    except FileNotFoundError:  # another process has deleted it
        return
    if size < least:
        raise lmdb.CorruptedError(f"it was cut to {size} bytes, and its pages take {least}")


def is_damage(error: lmdb.Error, file: Path) -> bool:
    """Return whether a file could not be opened or used because it is damaged or no LMDB file."""
    return isinstance(error, DAMAGES) or _version(file) not in VERSIONS


def _version(file: Path) -> int:
    """Return the version of a file's format, 0 without one."""
    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
    _, magic, rest = head.partition(MAGIC)
    return int.from_bytes(rest[:4], sys.byteorder) if magic else 0
