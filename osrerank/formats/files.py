"""Write text files so that no reader sees an incomplete file, and create the error for a bad line of a file."""

import gzip
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from osrerank.errors import FormatError

STDOUT = Path("/dev/stdout")


def line_error(path: Path, line: int, reason: str) -> FormatError:
    """Return the error for a bad line. Its message starts with file and line."""
    return FormatError(f"{path}, line {line}: {reason}", file=str(path), line=line)


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a temporary file beside ``path``, then rename it, so that readers never see an incomplete file.

    Pipes, devices and standard output are written to directly, because the rename would replace them.
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
            if path.suffix == ".gz":  # a header without name and time, so that equal lines give equal files
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
                    stream.writelines(line.encode() for line in lines)
            else:
                raw.writelines(line.encode() for line in lines)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
