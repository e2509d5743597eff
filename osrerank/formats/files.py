"""Text files: read line by line with their numbers, written whole or not at all."""

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from osrerank.errors import FormatError

BYTE_ORDER_MARK = "\ufeff"


def bad_line(path: Path, line: int, problem: str) -> FormatError:
    """Return the error of a line, its place at the front of the message."""
    return FormatError(f"{path}, line {line}: {problem}", file=str(path), line=line)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file, gzipped when named ``.gz``, with their numbers from 1 and without their ends.

    Raises:
        FormatError: a line is not UTF-8, or the gzip stream is damaged.
    """
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                yield number, line.decode("utf-8").rstrip("\r\n").removeprefix(BYTE_ORDER_MARK if number == 1 else "")
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 at byte {error.start}; convert the file to UTF-8 first"
            raise bad_line(path, number, reason) from None
        except (gzip.BadGzipFile, EOFError) as error:
            reason = f"{path}: damaged gzip file after line {number}: {error}"
            raise FormatError(reason, file=str(path), line=number) from None


def numbered_values(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON lines file with their line numbers, blank lines left out.

    Raises:
        FormatError: a line is not JSON.
    """
    for number, line in numbered_lines(path):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise bad_line(path, number, f"not JSON: {error}") from None


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a temporary file beside ``path``, then rename it; a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":  # without a name and a time inside, equal runs are equal files
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
                    stream.writelines(line.encode() for line in lines)
            else:
                raw.writelines(line.encode() for line in lines)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
