"""Parse the bodies of requests, and check limits of count, depth and size before building a value.

The parser is Python code that works in small steps, so that parsing a large body in a thread does not block the event
loop. Values that no dialect reads, such as a list in a document's field, stay JSON text, to be returned with their
document.
"""

import json
import re
import zlib
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn

from osrerank.server.api.errors import RefusedRequest
from osrerank.server.api.numbers import Json

READ_DEPTH = 3
"""The depth to which objects and lists are parsed: the body, its list of documents, and a document."""
MAX_DEPTH = 64
"""The greatest depth of nested objects and lists."""
MAX_DIGITS = 100
"""The most characters of a number."""
MAX_KEYS = 1_000
"""The most keys of an object that is parsed."""
MAX_JSON_TEXT = 1 << 20
"""The most characters of a value that stays JSON text."""
CHUNK_BYTES = 1 << 20
MAX_KEY = 32
"""The most characters of a key that an error message repeats."""

SPACE = re.compile(r"[ \t\n\r]*")
NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
WORD = re.compile(r"null|true|false|NaN|-?Infinity")
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
PLAIN = re.compile(r'[^"\[\]{}]*')
WORDS = {
    "null": None, "true": True, "false": False,
    "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"),
}  # fmt: skip
HUGE = re.compile(r"[eE]\+?[0-9]{3}")
"""An exponent that may be too large for a float."""
CLOSES = {"[": "]", "{": "}"}

Parsed = tuple[Any, int]
"""A parsed value, and the offset of the character after it."""


def inflate(body: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip body; stop as soon as the content is too large.

    Raises:
        RefusedRequest: the body is not gzip (400), or its content is too large (413).
    """
    content = bytearray()
    while True:
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            while not inflater.eof:
                chunk = inflater.decompress(body, CHUNK_BYTES)
                body = inflater.unconsumed_tail
                content += chunk
                if len(content) > max_bytes:
                    reason = f"the decompressed body is larger than {max_bytes} bytes: send fewer or shorter documents"
                    raise RefusedRequest(413, reason)
                if not chunk and not body and not inflater.eof:
                    raise RefusedRequest(400, "the gzip body is incomplete: send all of it")
        except zlib.error:
            raise RefusedRequest(
                400, "the body is not gzip, which its Content-Encoding states: correct the header"
            ) from None
        body = inflater.unused_data
        if not body:
            return bytes(content)


def read_body(body: bytes, max_entries: int) -> dict[str, Any]:
    """Parse a body that is a JSON object.

    Args:
        body: the bytes, in UTF-8 or another encoding that `json.detect_encoding` recognises.
        max_entries: the maximum number of entries of a list.

    Raises:
        RefusedRequest: the body is not JSON (400), has too many entries (413), or is not an object (422). No message
            repeats a value.
    """
    if not body.strip():
        raise RefusedRequest(422, "the body: it is empty; send a JSON object")
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        return _Reader(text, max_entries).body()
    except UnicodeDecodeError:
        raise RefusedRequest(400, "the body is not JSON: its encoding is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RefusedRequest(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None


class _Reader:
    """Parses a text from left to right; ``offset`` is the position of the next character."""

    def __init__(self, text: str, max_entries: int) -> None:
        self._text = text
        self._max_entries = max_entries

    def body(self) -> dict[str, Any]:
        offset = self._space(0)
        if self._text[offset : offset + 1] != "{":
            if self._text[offset : offset + 1] not in ("[", '"'):
                self._scalar(offset)
            raise RefusedRequest(422, "the body: it must be a JSON object")
        value, offset = self._object(offset, 1, "")
        if self._space(offset) != len(self._text):
            self._fail("there is text after the object", offset)
        return value

    def _value(self, offset: int, depth: int, name: str) -> Parsed:
        """Parse the value at an offset.

        Args:
            offset: the offset of the value's first character.
            depth: the number of objects and lists around the value.
            name: the name of the value for errors.
        """
        first = self._text[offset : offset + 1]
        if first == '"':
            string: Parsed = scanstring(self._text, offset + 1, True)  # noqa: FBT003 - a C function
            return string
        if first not in CLOSES:
            return self._scalar(offset)
        if depth == READ_DEPTH:
            return self._json_text(offset, depth, name)
        return self._object(offset, depth + 1, name) if first == "{" else self._array(offset, depth + 1, name)

    def _object(self, offset: int, depth: int, name: str) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}

        def member(offset: int) -> int:
            if self._text[offset : offset + 1] != '"':
                self._fail("a key in double quotes is missing", offset)
            key, offset = scanstring(self._text, offset + 1, True)  # noqa: FBT003 - a C function
            if key in members:
                raise RefusedRequest(422, f"{name or 'the body'}: a key occurs twice")
            if len(members) == MAX_KEYS:
                raise RefusedRequest(422, f"{name or 'the body'}: more than {MAX_KEYS} keys")
            offset = self._space(offset)
            if self._text[offset : offset + 1] != ":":
                self._fail("a colon is missing", offset)
            members[key], offset = self._value(self._space(offset + 1), depth, name or _key_for_message(key))
            return offset

        return members, self._entries(offset, "}", member)

    def _array(self, offset: int, depth: int, name: str) -> tuple[list[Any], int]:
        entries: list[Any] = []

        def entry(offset: int) -> int:
            if len(entries) == self._max_entries:
                self._refuse_count(entries, name)
            value, offset = self._value(offset, depth, f"{name}.{len(entries)}")
            entries.append(value)
            return offset

        return entries, self._entries(offset, "]", entry)

    def _entries(self, offset: int, closing: str, entry: Callable[[int], int]) -> int:
        """Parse entries with commas between them; return the offset after the closing bracket."""
        text = self._text
        offset = self._space(offset + 1)
        if text[offset : offset + 1] == closing:
            return offset + 1
        while True:
            offset = self._space(entry(offset))
            divider = text[offset : offset + 1]
            if divider == closing:
                return offset + 1
            if divider != ",":
                self._fail("a comma is missing", offset)
            offset = self._space(offset + 1)

    def _refuse_count(self, entries: list[Any], name: str) -> NoReturn:
        wrong_index = next((index for index, entry in enumerate(entries) if not _has_text(entry)), None)
        if wrong_index is not None:
            raise RefusedRequest(422, f"{name}.{wrong_index}: it must be a text, or an object with one")
        raise RefusedRequest(
            413,
            f"{name}: a request may have {self._max_entries} of them, and there are more: send several requests",
        )

    def _scalar(self, offset: int) -> Parsed:
        number = NUMBER.match(self._text, offset)
        if number is not None and self._text[offset : offset + 2] != "-I":
            if number.end() - offset > MAX_DIGITS:
                raise RefusedRequest(422, f"the body: a number of more than {MAX_DIGITS} characters")
            whole = number[2] is None and number[3] is None
            return int(number[1]) if whole else float(number[0]), number.end()
        word = WORD.match(self._text, offset)
        if word is None:
            self._fail("a value is missing", offset)
        return WORDS[word[0]], word.end()

    def _json_text(self, offset: int, depth: int, name: str) -> Parsed:
        """Check an object or list that no dialect reads, and return it as JSON text."""
        end = self._end(offset, depth, name)
        text = self._text[offset:end]
        constants: list[str] = []
        try:
            value = json.loads(text, parse_constant=constants.append)  # NaN is not JSON, and becomes null
            if constants or HUGE.search(text):
                return Json(json.dumps(value, allow_nan=False)), end
            return Json(text if text.isascii() else json.dumps(value)), end
        except json.JSONDecodeError as error:
            self._fail(error.msg, offset + error.pos)
        except ValueError:  # too many digits for an integer, or too large an exponent for a float
            raise RefusedRequest(422, f"{name}: it has a number that is too large") from None

    def _end(self, offset: int, depth: int, name: str) -> int:
        """Return the offset of the character after an object or list."""
        text, start = self._text, offset
        closing: list[str] = []
        while offset - start <= MAX_JSON_TEXT:
            first = text[offset : offset + 1]
            if first == '"':
                string = STRING.match(text, offset) or self._fail("a string has no end", offset)
                offset = string.end()
            elif first in CLOSES:
                closing.append(CLOSES[first])
                offset += 1
                if depth + len(closing) > MAX_DEPTH:
                    raise RefusedRequest(422, f"{name}: lists or objects are nested more than {MAX_DEPTH} deep")
            elif not closing or first != closing.pop():
                self._fail("a bracket has no counterpart", offset)
            else:
                offset += 1
                if not closing:
                    return offset
            offset = PLAIN.match(text, offset).end()  # type: ignore[union-attr]
        raise RefusedRequest(422, f"{name}: a list or an object within it has more than {MAX_JSON_TEXT} characters")

    def _space(self, offset: int) -> int:
        if self._text[offset : offset + 1] not in " \t\n\r":
            return offset
        return SPACE.match(self._text, offset).end()  # type: ignore[union-attr]

    def _fail(self, reason: str, offset: int) -> NoReturn:
        raise json.JSONDecodeError(reason, "", offset)


def _has_text(entry: Any) -> bool:
    texts = entry.values() if isinstance(entry, dict) else [entry]
    return any(isinstance(text, str) for text in texts)


def _key_for_message(key: str) -> str:
    """Return a key for an error message if it looks like a field's name, else "a value"."""
    return key if len(key) <= MAX_KEY and key.isascii() and key.isidentifier() else "a value"
