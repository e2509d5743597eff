"""Lines of text and of JSON, numbered, with what is wrong with a line in its place."""

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from osrerank.errors import FormatError
from osrerank.formats.sources import Source, malformed

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
    """Yield each line's number and its JSON object; blank lines are passed over."""
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
        FormatError: the first line that is not what it should be.
    """
    for number, line in lines:
        if isinstance(line, FormatError):
            raise line
        yield number, line


def _without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines, the first without the byte order mark that some editors put there."""
    rest = iter(lines)
    yield from (first.removeprefix(codecs.BOM_UTF8) for first in itertools.islice(rest, 1))
    yield from rest


def not_utf8(source: Source, line: int, error: UnicodeDecodeError) -> FormatError:
    """Return the error for a line that is not UTF-8."""
    return malformed(
        source, f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}", line=line
    )


def shown(raw: bytes | str) -> str:
    """Return the beginning of a record as a message may show it."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    text = text.rstrip("\n")
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
