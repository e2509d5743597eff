"""Texts of a collection by id, read from the file on demand: a collection need not fit into memory."""

import json
import mmap
from collections.abc import Iterator
from pathlib import Path

from osrerank.errors import FormatError
from osrerank.formats.files import bad_line
from osrerank.training.examples.lists import text_of

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Texts:
    """The documents or queries of a file, JSON lines or ``id<TAB>text``; only their places are kept in memory.

    Args:
        path: not compressed. JSON lines have ``id`` (or ``_id``, ``doc_id``, ``query_id``), ``text`` (or ``query``)
            and perhaps ``title``, which comes before the text. With more than two columns the first is the id, and the
            others are joined by spaces, except the second of four, MS MARCO's URL.

    Raises:
        FormatError: a line is malformed, or an id appears twice.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix == ".gz":
            raise FormatError(f"{path}: unpack it first; its lines are looked up by place", file=str(path))
        if not path.stat().st_size:
            raise FormatError(f"{path} is empty", file=str(path))
        self._path = path
        with path.open("rb") as file:
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._places: dict[str, tuple[int, int]] = {}
        for number, place, line in self._lines():
            text_id = _id_of(line, path, number)
            if text_id in self._places:
                raise bad_line(path, number, f"the id {text_id} appears twice")
            self._places[text_id] = (number, place)

    def __contains__(self, text_id: str) -> bool:
        return text_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, text_id: str) -> str:
        """Return a text.

        Raises:
            KeyError: there is no text with that id.
            FormatError: its line has no text.
        """
        number, place = self._places[text_id]
        end = self._content.find(b"\n", place)
        line = self._content[place : end if end >= 0 else len(self._content)]
        return _text_of(line.removeprefix(BYTE_ORDER_MARK), self._path, number)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        place = 0
        for number, line in enumerate(iter(self._content.readline, b""), start=1):
            if line.strip():
                yield number, place, line.removeprefix(BYTE_ORDER_MARK)
            place += len(line)


def _id_of(line: bytes, path: Path, number: int) -> str:
    if line.startswith(b"{"):
        value = _json(line, path, number)
        found = next((str(value[name]) for name in ("id", "_id", "doc_id", "query_id") if name in value), "")
    else:
        found = _decoded(line.partition(b"\t")[0], path, number).strip() if b"\t" in line else ""
    if not found:
        raise bad_line(path, number, "expected JSON with an id, or `id<TAB>text`")
    return found


def _text_of(line: bytes, path: Path, number: int) -> str:
    if not line.startswith(b"{"):
        columns = _decoded(line, path, number).rstrip("\r\n").split("\t")
        return " ".join(columns[2:] if len(columns) == 4 else columns[1:]).strip()
    value = _json(line, path, number)
    try:
        return text_of({**value, "text": value.get("text", value.get("query"))})
    except (KeyError, TypeError):
        raise bad_line(path, number, "the document has no text") from None


def _json(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise bad_line(path, number, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_line(path, number, "expected a JSON object")
    return value


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_line(path, number, f"not UTF-8 at byte {error.start}; convert the file to UTF-8 first") from None
