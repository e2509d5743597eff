"""Look up documents or queries by id in a large text file, without reading the whole file into memory."""

import codecs
import json
import logging
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from osrerank.errors import FormatError, LoaderError
from osrerank.formats.files import line_error
from osrerank.formats.id_table import IdRow, IdTable
from osrerank.formats.lines import ONLY_CR_REASON
from osrerank.formats.sources import HEAD_BYTES, PACKED_PREFIXES, wide_encoding_error
from osrerank.training.examples.example import TitledText, join_title

logger = logging.getLogger(__name__)

MIN_STORED_BYTES = 256 << 20
"""The minimum size in bytes of a file whose line offsets are stored. In smaller files, they are found each time."""
OFFSETS_SUFFIX = ".ids.sqlite"
"""The ending of a file of stored line offsets."""
ID_FIELDS = ("id", "_id", "doc_id", "query_id", "id_str")
TEXT_FIELDS = ("text", "query", "full_text")


class TextFile:
    """The documents or queries in a file of JSON lines or of lines ``id<TAB>text``, read by id.

    Memory does not grow with the number of lines, because a table on disk contains each id and the offset of its line.
    The table of a file of at least `MIN_STORED_BYTES` is stored next to it, as ``NAME.ids.sqlite``, and reused until
    the file's size or modification time changes. The table of a smaller file is temporary.

    JSON lines contain one of `ID_FIELDS`, one of `TEXT_FIELDS`, and optionally ``title``, which is put before the text.
    In lines of columns, the first column is the id, and the others are joined by spaces. Lines of four columns are MS
    MARCO's ``id, URL, title, text``, of which the URL is left out.

    Raises:
        FormatError: the file is compressed, a line is malformed, or an id appears twice.
        LoaderError: the disk is too full to store the offsets.
    """

    def __init__(self, path: Path) -> None:
        if not path.stat().st_size:
            raise FormatError(f"{path} is empty", file=str(path))
        self._path = path
        self._lock = threading.Lock()
        self._file = path.open("rb")
        weakref.finalize(self, self._file.close)
        head = self._file.read(HEAD_BYTES)
        if head.startswith(PACKED_PREFIXES):
            raise FormatError(
                f"{path} is compressed; unpack it first, because its lines are read in any order", file=str(path)
            )
        error = wide_encoding_error(str(path), head)
        if error is not None:
            raise error
        is_large = path.stat().st_size >= MIN_STORED_BYTES
        self._offsets = self._open_table() if is_large else self._create_temporary_table()

    def __contains__(self, text_id: str) -> bool:
        return text_id in self._offsets

    def get_document(self, text_id: str) -> TitledText:
        """Return the document or query with this id, and its title.

        Raises:
            KeyError: the file does not contain the id.
            FormatError: the line has no text, or the file has changed since its offsets were stored.
        """
        row = self._offsets.get(text_id)
        if row is None:
            raise KeyError(text_id)
        offset = int(row.value)
        with self._lock:
            self._file.seek(offset)
            line = self._file.readline().removeprefix(codecs.BOM_UTF8)
        record = _parse_json(line, self._path, row.number)
        if _read_id(line, record, self._path, row.number) != text_id:
            reason = f"this line no longer contains the text of {text_id!r}; delete {self._path.name}{OFFSETS_SUFFIX}"
            raise line_error(self._path, row.number, reason)
        return _read_text(line, record, self._path, row.number)

    def _open_table(self) -> IdTable:
        """Open the table stored next to the file, or create it. If it cannot be stored, create a temporary table."""
        table_file = self._path.with_name(f"{self._path.name}{OFFSETS_SUFFIX}")
        state = self._path.stat()
        key = f"{state.st_size}:{state.st_mtime_ns}"
        stored_table = IdTable.open_existing(table_file, key)
        if stored_table is not None:
            return stored_table
        try:
            return IdTable.create(table_file, key, self._read_rows(), check=self._refuse_repeats)
        except LoaderError as error:
            logger.warning(
                "the ids of %s are sorted again on each start, because the sorted ids could not be stored: %s",
                self._path.name,
                error,
            )
        return self._create_temporary_table()

    def _create_temporary_table(self) -> IdTable:
        offsets = IdTable.create_temporary(self._read_rows())
        self._refuse_repeats(offsets)
        return offsets

    def _refuse_repeats(self, offsets: IdTable) -> None:
        repeats = offsets.find_repeats(1)
        if repeats:
            raise line_error(self._path, repeats[0].number, f"the id {repeats[0].id!r} appears twice; remove one")

    def _read_rows(self) -> Iterator[IdRow]:
        """Yield each line's id with the line's number and offset."""
        offset = 0
        with self._path.open("rb") as lines:
            for line_number, line in enumerate(lines, start=1):
                if line.strip():
                    content = line.removeprefix(codecs.BOM_UTF8)
                    is_only_line = line_number == 1 and not content.endswith(b"\n")
                    if is_only_line and b"\r" in content.strip():
                        raise line_error(self._path, line_number, ONLY_CR_REASON)
                    record = _parse_json(content, self._path, line_number)
                    yield IdRow(_read_id(content, record, self._path, line_number), line_number, offset)
                offset += len(line)


def _read_id(line: bytes, record: dict[str, object] | None, path: Path, line_number: int) -> str:
    """Return a line's id. ``record`` is the line's JSON object, or None if the line consists of columns."""
    text_id = ""
    if record is not None:
        text_id = next((str(record[name]) for name in ID_FIELDS if name in record), "")
    elif b"\t" in line:
        text_id = _decode(line.partition(b"\t")[0], path, line_number).strip()
    if not text_id:
        raise line_error(path, line_number, "expected JSON with an id, or `id<TAB>text`")
    return text_id


def _read_text(line: bytes, record: dict[str, object] | None, path: Path, line_number: int) -> TitledText:
    """Return a line's text and title. ``record`` is as in `_read_id`."""
    if record is None:
        columns = _decode(line, path, line_number).rstrip("\r\n").split("\t")
        if len(columns) == 4:  # MS MARCO's id, URL, title, text
            return join_title({"title": columns[2], "text": columns[3]})
        return TitledText(" ".join(columns[1:]).strip())
    text = next((record[name] for name in TEXT_FIELDS if name in record), None)
    try:
        return join_title({**record, "text": text})
    except TypeError:
        raise line_error(path, line_number, "the document has no text, or its title is not a string") from None


def _parse_json(line: bytes, path: Path, line_number: int) -> dict[str, object] | None:
    """Return the object in a line of JSON, or None if the line consists of columns."""
    if not line.startswith(b"{"):
        return None
    try:
        record = json.loads(line)
    except ValueError as error:
        raise line_error(path, line_number, f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise line_error(path, line_number, "expected a JSON object")
    return record


def _decode(line: bytes, path: Path, line_number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise line_error(
            path, line_number, f"not UTF-8 at byte {error.start}; convert the file to UTF-8 first"
        ) from None
