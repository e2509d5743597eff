"""Write text files so that no reader sees an incomplete file, hash files, and create the error for a bad line."""

import contextlib
import errno
import gzip
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from osrerank.errors import FormatError

STDOUT = Path("/dev/stdout")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a disk that is full or fails: no space, no quota, too large a file, or an I/O error."""


def line_error(path: Path, line: int, reason: str) -> FormatError:
    """Return the error for a bad line. Its message starts with file and line."""
    return FormatError(f"{path}, line {line}: {reason}", file=str(path), line=line)


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Return a file's checksum, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def write_atomically(path: Path, lines: Iterable[str | bytes]) -> None:
    """Write lines to a temporary file beside ``path``, then rename it, so that readers never see an incomplete file.

    Pipes, devices and standard output are written to directly, because the rename would replace them.

    Raises:
        OSError: the file cannot be written.
    """
    if path == STDOUT:
        sys.stdout.buffer.writelines(map(_encode, lines))
        return
    if path.exists() and not path.is_file():
        with add_path_to_disk_errors(path), path.open("wb") as stream:
            stream.writelines(map(_encode, lines))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with add_path_to_disk_errors(path), temporary.open("wb") as raw:
            if path.suffix == ".gz":  # a header without name and time, so that equal lines give equal files
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
                    stream.writelines(map(_encode, lines))
            else:
                raw.writelines(map(_encode, lines))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def add_path_to_disk_errors(path: Path) -> Iterator[None]:
    """Add the path to an error about a full or failing disk, which names no file if it comes from a write."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRORS and error.filename is None:
            error.filename = str(path)
        raise


def _encode(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode()
