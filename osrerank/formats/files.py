"""Write text files whole or not at all, and make the error for a bad line."""

import gzip
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from osrerank.errors import FormatError

STDOUT = Path("/dev/stdout")


def bad_line(path: Path, line: int, problem: str) -> FormatError:
    """Return the error for a bad line; its message starts with file and line."""
    return FormatError(f"{path}, line {line}: {problem}", file=str(path), line=line)


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a temporary file beside ``path``, then rename it; a reader never sees half a file.

    Lines for a pipe or device are written as they come. So are lines for standard output, because a file that is
    renamed to ``/dev/stdout`` would replace that link itself.
    """
    if path == STDOUT:
        sys.stdout.buffer.writelines(line.encode() for line in lines)
        return
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.writelines(line.encode() for line in lines)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":  # the header has no name or time, so that equal runs write equal files
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
                    stream.writelines(line.encode() for line in lines)
            else:
                raw.writelines(line.encode() for line in lines)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
