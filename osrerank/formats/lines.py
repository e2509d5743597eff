"""Numbered lines of text and of JSON; a bad line comes as its error."""

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from osrerank.errors import FormatError
from osrerank.formats.sources import Source, malformed, open_paths, readable

Content = TypeVar("Content")
_SHOWN = 60


def text_lines(source: Source) -> Iterator[tuple[int, str | FormatError]]:
    """Yield each line's number, from 1, and its text without the line feed; nothing else is stripped."""
    for number, raw in enumerate(_without_mark(source.stream), 1):
        try:
            yield number, raw.decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            yield number, not_utf8(source, number, error)


def json_lines(source: Source) -> Iterator[tuple[int, dict[str, Any] | FormatError]]:
    """Yield each line's number and its JSON object; blank lines are skipped."""
    decode = json.JSONDecoder().decode
    for number, raw in enumerate(_without_mark(source.stream), 1):
        try:
            value = decode(raw.decode())
        except UnicodeDecodeError as error:
            yield number, not_utf8(source, number, error)
        except (ValueError, RecursionError) as error:
            if raw.strip():
                yield number, malformed(source, f"not a JSON object ({error}): {shown(raw)}", line=number)
        else:
            if isinstance(value, dict):
                yield number, value
            else:
                yield number, malformed(source, f"expected a JSON object, found {shown(raw)}", line=number)


def whole(lines: Iterable[tuple[int, Content | FormatError]]) -> Iterator[tuple[int, Content]]:
    """Yield the lines of a file that is read whole or not at all.

    Raises:
        FormatError: for the first bad line.
    """
    for number, line in lines:
        if isinstance(line, FormatError):
            raise line
        yield number, line


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, compressed or not, with their numbers from 1 and without their ends.

    Raises:
        FormatError: a line is not UTF-8, or the file is truncated or damaged.
    """
    for source in open_paths(path):
        with readable(source):
            for number, line in whole(text_lines(source)):
                yield number, line.removesuffix("\r")


def numbered_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON lines file, compressed or not, with their line numbers; blank lines are skipped.

    Raises:
        FormatError: a line is not a JSON object in UTF-8, or the file is truncated or damaged.
    """
    for source in open_paths(path):
        with readable(source):
            yield from whole(json_lines(source))


def _without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines, the first without the byte order mark that some editors write."""
    rest = iter(lines)
    yield from (first.removeprefix(codecs.BOM_UTF8) for first in itertools.islice(rest, 1))
    yield from rest


def not_utf8(source: Source, line: int, error: UnicodeDecodeError) -> FormatError:
    """Return the error for a line that is not UTF-8."""
    return malformed(
        source, f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}", line=line
    )


def shown(raw: bytes | str) -> str:
    """Return the beginning of a record, short enough for a message."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    text = text.rstrip("\n")
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
