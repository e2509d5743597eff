"""Read the lines of text files and of JSON lines, with their numbers from 1.

For a bad line, `read_text_lines` and `read_json_lines` yield an error in place of its content, so that a caller can
count bad lines and go on. `raise_errors` raises the first of these errors, as the other functions do.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from osrerank.errors import FormatError
from osrerank.formats.sources import SourceFile, file_errors, open_paths, record_error

Content = TypeVar("Content")
ONLY_CR_REASON = "lines end with CR alone; convert the file first: tr '\\r' '\\n'"
WORD = re.compile(r"\S+", re.ASCII)
"""A word as trec_eval defines it. Only ASCII white space separates words, so a word can contain a no-break space."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXCERPT_CHARACTERS = 60


def read_text_lines(source: SourceFile) -> Iterator[tuple[int, str | FormatError]]:
    """Yield each line's number and its text without LF or CR LF.

    Byte order marks are removed from all lines, because concatenated files can contain them in the middle.
    """
    for number, raw in enumerate(source.stream, 1):
        try:
            line = raw.removeprefix(BOM_UTF8).decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            yield number, not_utf8_error(source, number, error)
        else:
            has_only_cr = number == 1 and "\r" in line and not raw.endswith(b"\n")
            yield number, record_error(source, ONLY_CR_REASON, line=1) if has_only_cr else line


def read_json_lines(source: SourceFile) -> Iterator[tuple[int, dict[str, Any] | FormatError]]:
    """Yield each line's number and its JSON object. Blank lines are skipped."""
    decode = json.JSONDecoder().decode
    for number, raw in enumerate(source.stream, 1):
        try:
            value = decode(raw.removeprefix(BOM_UTF8).decode())
        except UnicodeDecodeError as error:
            yield number, not_utf8_error(source, number, error)
        except (ValueError, RecursionError) as error:
            if raw.strip():
                has_only_cr = number == 1 and b"\r" in raw.strip() and not raw.endswith(b"\n")
                reason = ONLY_CR_REASON if has_only_cr else f"not a JSON object ({error}): {quote_start(raw)}"
                yield number, record_error(source, reason, line=number)
        else:
            if isinstance(value, dict):
                yield number, value
            else:
                yield number, record_error(source, f"expected a JSON object, found {quote_start(raw)}", line=number)


def raise_errors(lines: Iterable[tuple[int, Content | FormatError]]) -> Iterator[tuple[int, Content]]:
    """Yield lines until the first bad line, and raise its error."""
    for number, line in lines:
        if isinstance(line, FormatError):
            raise line
        yield number, line


def read_column_lines(source: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield the lines of a run, a qrels file or another file whose columns are separated by white space.

    Raises:
        FormatError: a line is not UTF-8, or contains CR.
    """
    for number, line in raise_errors(read_text_lines(source)):
        if "\r" in line:
            raise record_error(source, ONLY_CR_REASON, line=number)
        yield number, line


def read_numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers and texts of a file's lines. The file can be compressed.

    Raises:
        FormatError: a line is not UTF-8, or the file is truncated or damaged.
    """
    for source in open_paths(path):
        with file_errors(source):
            yield from raise_errors(read_text_lines(source))


def read_numbered_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line numbers and objects of a file of JSON lines, without blank lines. The file can be compressed.

    Raises:
        FormatError: a line is not a JSON object in UTF-8, or the file is truncated or damaged.
    """
    for source in open_paths(path):
        with file_errors(source):
            yield from raise_errors(read_json_lines(source))


def read_json_file(path: Path) -> Any:
    """Return the value of a JSON file, which can be compressed.

    Raises:
        ValueError: the file is not JSON.
        FormatError: the file is in UTF-16, truncated or damaged.
    """
    sources = open_paths(path)
    source = next(sources)  # one path is one source
    with file_errors(source):
        return json.loads(source.stream.read())


def parse_whole_number(text: str) -> int:
    """Parse a whole number of ASCII digits with an optional sign.

    Raises:
        ValueError: the text is not such a number. ``int`` would also accept ``1_0`` and digits of other scripts.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def explain_invalid_id(text: str, *, is_query: bool = False) -> str:
    """Return why an id is invalid in runs and judgments, or "" if it is valid."""
    if not WORD.fullmatch(text):
        return f"the id {text!r} must be one word, because columns of runs and judgments are separated by white space"
    if is_query and text.startswith("#"):
        return f"the query id {text!r} begins with '#', like a comment in runs and judgments; change it"
    return ""


def not_utf8_error(source: SourceFile, line: int, error: UnicodeDecodeError) -> FormatError:
    """Return the error for a line that is not UTF-8."""
    return record_error(
        source, f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}", line=line
    )


def quote_start(raw: bytes | str) -> str:
    """Return the beginning of a line in quotation marks, short enough for a message."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    text = text.rstrip("\n")
    return repr(text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}...")
