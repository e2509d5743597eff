"""Read a collection's texts by id from the file, on demand, so that the collection need not fit into memory."""

import codecs
import json
import logging
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from osrerank.errors import FormatError, LoaderError
from osrerank.formats.files import bad_line
from osrerank.formats.id_table import IdRow, IdTable
from osrerank.formats.lines import ONLY_CR
from osrerank.formats.sources import HEAD_BYTES, PACKED_PREFIXES, wide_encoding_error
from osrerank.training.examples.lists import TitledText, titled

logger = logging.getLogger(__name__)

KEPT_BYTES = 256 << 20
"""The minimum size of files whose line offsets are stored next to the file. Smaller files are read again each time."""
KEPT_SUFFIX = ".ids.sqlite"


class TextFile:
    """The documents or queries in a file of JSON lines or ``id<TAB>text``; memory does not grow with their number.

    Another file holds the offsets of the lines, sorted by id, with the id and some 16 bytes for each text. For a large
    collection, this file is ``NAME.ids.sqlite`` next to the collection, and it is used again as long as the
    collection's size and time stay the same. For a smaller collection, it is a temporary file.

    Args:
        path: the file, which is not compressed. JSON lines have ``id`` (or ``_id``, ``doc_id``, ``query_id``), ``text``
            (or ``query``) and perhaps ``title``, which comes before the text. The first column is the id, and the
            others are joined by spaces; of four columns, the second is left out: it is MS MARCO's URL.
        kept_bytes: minimum size of files whose offsets are stored next to the file.

    Raises:
        FormatError: a line is malformed, or an id appears twice.
        LoaderError: the disk has no room for the offsets.
    """

    def __init__(self, path: Path, *, kept_bytes: int = KEPT_BYTES) -> None:
        if not path.stat().st_size:
            raise FormatError(f"{path} is empty", file=str(path))
        self._path = path
        self._reading = threading.Lock()
        self._file = path.open("rb")
        weakref.finalize(self, self._file.close)
        head = self._file.read(HEAD_BYTES)
        if head.startswith(PACKED_PREFIXES):
            raise FormatError(
                f"{path} is compressed; unpack it first, because its lines are read in any order", file=str(path)
            )
        if (refused := wide_encoding_error(str(path), head)) is not None:
            raise refused
        self._offsets = self._sorted_offsets(is_kept=path.stat().st_size >= kept_bytes)

    def __contains__(self, text_id: str) -> bool:
        return text_id in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids in the order of the file."""
        return (row.id for row in self._rows())

    def __getitem__(self, text_id: str) -> str:
        """Return a text as a model reads it; raises what `document` raises."""
        return self.document(text_id).full_text

    def document(self, text_id: str) -> TitledText:
        """Return a text with its title.

        Raises:
            KeyError: no text has that id.
            FormatError: the line has no text, or the file has changed since its offsets were sorted.
        """
        row = self._offsets.get(text_id)
        if row is None:
            raise KeyError(text_id)
        with self._reading:
            self._file.seek(int(row.value))
            line = self._file.readline().removeprefix(codecs.BOM_UTF8)
        value = _value(line, self._path, row.number)
        if _id_of(line, value, self._path, row.number) != text_id:
            reason = f"this line no longer has the text of {text_id}; delete {self._path.name}{KEPT_SUFFIX}"
            raise bad_line(self._path, row.number, reason)
        return _text_of(line, value, self._path, row.number)

    def _sorted_offsets(self, *, is_kept: bool) -> IdTable:
        """Return a table of the offset of each id's line; ``is_kept`` stores it next to the file.

        Raises:
            FormatError: an id appears twice.
        """
        if is_kept:
            offsets_file, state = self._path.with_name(f"{self._path.name}{KEPT_SUFFIX}"), self._path.stat()
            key = f"{state.st_size}:{state.st_mtime_ns}"
            if (offsets := IdTable.open_existing(offsets_file, key)) is not None:
                return offsets
            try:
                return IdTable.create(offsets_file, key, self._rows(), check=self._refuse_repeats)
            except LoaderError as error:
                logger.warning(
                    "the ids of %s are sorted again on each start, because the result could not be stored: %s",
                    self._path.name,
                    error,
                )
        offsets = IdTable.create_temporary(self._rows())
        self._refuse_repeats(offsets)
        return offsets

    def _refuse_repeats(self, offsets: IdTable) -> None:
        if repeats := offsets.find_repeats(1):
            raise bad_line(self._path, repeats[0].number, f"the id {repeats[0].id} appears twice")

    def _rows(self) -> Iterator[IdRow]:
        """Yield each line's id, number and offset in bytes."""
        offset = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    content = line.removeprefix(codecs.BOM_UTF8)
                    if number == 1 and b"\r" in content.strip() and not content.endswith(b"\n"):
                        raise bad_line(self._path, number, ONLY_CR)
                    value = _value(content, self._path, number)
                    yield IdRow(_id_of(content, value, self._path, number), number, offset)
                offset += len(line)


def _id_of(line: bytes, value: dict[str, object] | None, path: Path, number: int) -> str:
    if value is not None:
        text_id = next(
            (str(value[name]) for name in ("id", "_id", "doc_id", "query_id", "id_str") if name in value), ""
        )
    else:
        text_id = _decode(line.partition(b"\t")[0], path, number).strip() if b"\t" in line else ""
    if not text_id:
        raise bad_line(path, number, "expected JSON with an id, or `id<TAB>text`")
    return text_id


def _text_of(line: bytes, value: dict[str, object] | None, path: Path, number: int) -> TitledText:
    if value is None:
        columns = _decode(line, path, number).rstrip("\r\n").split("\t")
        if len(columns) == 4:
            return titled({"title": columns[2], "text": columns[3]})
        return TitledText(" ".join(columns[1:]).strip())
    try:
        return titled({**value, "text": value.get("text", value.get("query", value.get("full_text")))})
    except (KeyError, TypeError):
        raise bad_line(path, number, "the document has no text, or its title is not a string") from None


def _value(line: bytes, path: Path, number: int) -> dict[str, object] | None:
    """Return the object in a line of JSON; None for a line of columns."""
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except ValueError as error:
        raise bad_line(path, number, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_line(path, number, "expected a JSON object")
    return value


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_line(path, number, f"not UTF-8 at byte {error.start}; convert the file to UTF-8 first") from None
