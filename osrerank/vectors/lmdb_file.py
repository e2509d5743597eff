"""Open LMDB files safely, so that a truncated file or a full disk does not kill the process.

LMDB maps its files into memory, and the system kills a process that accesses a mapped file beyond its end. So files are
checked for missing pages, and disk space for lock files is reserved.
"""

import os
import sys
from pathlib import Path

import lmdb

DAMAGE_ERRORS = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""The errors of LMDB for damaged files, and for files that it did not write."""
MAX_READERS = 1024
"""The maximum number of threads, in all processes together, that can read a file at a time."""
LOCK_FILE_BYTES = 64 * (MAX_READERS + 2)
"""The size of LMDB's lock file: a cache line for each reader, and two for the header."""
META_PAGES = 2
"""The number of meta pages at the start of a file. They are always mapped into memory."""
MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)
"""The bytes before the version of the file format in each meta page."""
HEADER_BYTES = 64
"""The number of bytes at the start of a file that contain `MAGIC` and the version."""
VERSIONS = frozenset({1, 3})
"""The versions of the file format in LMDB 0.9 and 1.0."""


def open_lmdb(file: Path, max_bytes: int) -> lmdb.Environment:
    """Open a file for reading and writing. Create it if it does not exist.

    Args:
        file: the file. LMDB creates a lock file beside it.
        max_bytes: the maximum size of the file, unless it is already larger.

    Raises:
        OSError: the disk is full.
        lmdb.CorruptedError: pages of the file are missing.
        lmdb.Error: the file cannot be opened. `is_damage` tells whether it is damaged.
    """
    _reserve_lock_file(file.with_name(f"{file.name}-lock"))
    environment = lmdb.open(
        str(file),
        subdir=False,
        map_size=max(max_bytes, file.stat().st_size if file.exists() else 0),
        max_readers=MAX_READERS,
        max_spare_txns=0,  # in a forked child, closing a spare transaction would free the parent's reader slot
        mode=0o600,
        metasync=False,
        readahead=False,
    )
    try:
        check_length(environment, environment.stat()["psize"], file)
        environment.reader_check()  # free the reader slots of killed processes
    except BaseException:
        environment.close()
        raise
    return environment


def _reserve_lock_file(lock_file: Path) -> None:
    """Reserve disk space for the lock file, because writing to a mapped file on a full disk kills the process."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, LOCK_FILE_BYTES)
    finally:
        os.close(handle)


def check_length(environment: lmdb.Environment, page_bytes: int, file: Path) -> None:
    """Check that an open file is as long as its meta pages state.

    LMDB always writes the last page of a file, unless records were deleted from the file, and osrerank deletes none.
    So a shorter file was truncated.

    Raises:
        lmdb.CorruptedError: the file is too short.
    """
    min_bytes = META_PAGES * page_bytes
    try:
        size = file.stat().st_size
        if size >= min_bytes:  # the meta pages, which ``environment.info`` reads, are complete
            min_bytes = (environment.info()["last_pgno"] + 1) * page_bytes
        if size < min_bytes:  # another process might have extended the file in the meantime
            size = file.stat().st_size
    except FileNotFoundError:  # another process has deleted it
        return
    if size < min_bytes:
        raise lmdb.CorruptedError(f"the file has {size} bytes, but its pages take {min_bytes}")


def is_damage(error: lmdb.Error, file: Path) -> bool:
    """Return whether an error means that the file is damaged, or that LMDB did not write it."""
    return isinstance(error, DAMAGE_ERRORS) or _read_version(file) not in VERSIONS


def _read_version(file: Path) -> int:
    """Return the version of a file's format, or 0 if the file does not begin with a meta page."""
    with file.open("rb") as stream:
        start = stream.read(HEADER_BYTES)
    _, magic, version = start.partition(MAGIC)
    return int.from_bytes(version[:4], sys.byteorder) if magic else 0
