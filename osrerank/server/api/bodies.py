"""Decompress and parse the JSON bodies of requests, and refuse a body as soon as it exceeds a limit.

``json.loads`` holds Python's global interpreter lock while it parses a large body. Even in another thread, it would
thus block the event loop. This parser is written in Python, so it lets other threads run.

A document can be an object with fields. If a field contains a list or an object, such as ``{"tags": ["a", "b"]}``, the
value remains JSON text, a `Json`: no dialect scores it, but a response can repeat the document.
"""

import json
import re
import zlib
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn

from osrerank.server.api.errors import RefusedRequest
from osrerank.server.api.numbers import Json

PARSED_DEPTH = 3
"""The number of nested levels that are parsed: the body (1), its list of documents (2) and a document (3)."""
MAX_DEPTH = 64
"""The maximum number of nested levels of objects and lists."""
MAX_NUMBER_CHARACTERS = 100
"""The maximum length of a number."""
MAX_KEYS = 1_000
"""The maximum number of keys of a parsed object."""
MAX_JSON_CHARACTERS = 1 << 20
"""The maximum length of a list or an object in a document's field."""
MAX_KEY_CHARACTERS = 32
"""The maximum length of a key that an error message repeats."""
CHUNK_BYTES = 1 << 20
"""The size of the chunks in which a gzip body is decompressed."""

WHITESPACE = re.compile(r"[ \t\n\r]*")
NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
CONSTANT = re.compile(r"null|true|false|NaN|-?Infinity")
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
NO_QUOTES_OR_BRACKETS = re.compile(r'[^"\[\]{}]*')
CONSTANTS = {
    "null": None, "true": True, "false": False,
    "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"),
}  # fmt: skip
LARGE_EXPONENT = re.compile(r"[eE]\+?[0-9]{3}")
"""Matches exponents of three or more digits, such as e400, because they might be too large for a float."""
CLOSING_BRACKETS = {"[": "]", "{": "}"}

Parsed = tuple[Any, int]
"""A parsed value, and the offset of the character after it."""


def inflate(body: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip body.

    Raises:
        RefusedRequest: the body is not gzip (400), or its decompressed size exceeds ``max_bytes`` (413).
    """
    content = bytearray()
    while True:  # a gzip body can consist of several compressed members
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16 selects the gzip format
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
            reason = "the Content-Encoding is gzip, but the body is not: correct the header"
            raise RefusedRequest(400, reason) from None
        body = inflater.unused_data
        if not body:
            return bytes(content)


def read_body(body: bytes, max_entries: int) -> dict[str, Any]:
    """Parse a body that is a JSON object.

    Args:
        body: the bytes, in UTF-8, UTF-16 or UTF-32.
        max_entries: the maximum number of entries of a list, such as the list of documents.

    Raises:
        RefusedRequest: the body is not JSON (400), a list has too many entries (413), or the body is not an object or
            exceeds another limit (422). The message never repeats a value, which might be confidential.
    """
    if not body.strip():
        raise RefusedRequest(422, "the body is empty: send a JSON object")
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        return _Parser(text, max_entries).parse_body()
    except UnicodeDecodeError:
        raise RefusedRequest(400, "the body is not JSON: its encoding is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RefusedRequest(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None


class _Parser:
    """A recursive-descent parser of JSON. Each method parses the value that begins at ``offset``.

    In all methods, ``depth`` is the nested level, which is 1 in the body. ``name`` is the value's name in error
    messages, such as ``documents.3``. It contains no key of a document, which might be confidential.
    """

    def __init__(self, text: str, max_entries: int) -> None:
        self._text = text
        self._max_entries = max_entries

    def parse_body(self) -> dict[str, Any]:
        offset = self._skip_whitespace(0)
        first = self._text[offset : offset + 1]
        if first != "{":
            if first not in ("[", '"'):
                self._parse_scalar(offset)  # raises another error if the body is not JSON at all
            raise RefusedRequest(422, "the body must be a JSON object")
        value, offset = self._parse_object(offset, 1, "")
        if self._skip_whitespace(offset) != len(self._text):
            self._fail("there is text after the object", offset)
        return value

    def _parse_value(self, offset: int, depth: int, name: str) -> Parsed:
        first = self._text[offset : offset + 1]
        if first == '"':
            string: Parsed = scanstring(self._text, offset + 1, True)  # noqa: FBT003 - strict, in a C function
            return string
        if first not in CLOSING_BRACKETS:
            return self._parse_scalar(offset)
        if depth == PARSED_DEPTH:
            return self._parse_as_text(offset, depth, name)
        if first == "{":
            return self._parse_object(offset, depth + 1, name)
        return self._parse_list(offset, depth + 1, name)

    def _parse_object(self, offset: int, depth: int, name: str) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}

        def parse_member(offset: int) -> int:
            if self._text[offset : offset + 1] != '"':
                self._fail("a key in double quotes is missing", offset)
            key, offset = scanstring(self._text, offset + 1, True)  # noqa: FBT003 - strict, in a C function
            if key in members:
                raise RefusedRequest(422, f"{name or 'the body'} contains the key {key!a:.100} twice")
            if len(members) == MAX_KEYS:
                raise RefusedRequest(422, f"{name or 'the body'} has more than {MAX_KEYS} keys")
            offset = self._skip_whitespace(offset)
            if self._text[offset : offset + 1] != ":":
                self._fail("a colon is missing", offset)
            offset = self._skip_whitespace(offset + 1)
            members[key], offset = self._parse_value(offset, depth, name or _key_for_message(key))
            return offset

        end = self._parse_entries(offset, "}", parse_member)
        return members, end

    def _parse_list(self, offset: int, depth: int, name: str) -> tuple[list[Any], int]:
        entries: list[Any] = []

        def parse_entry(offset: int) -> int:
            if len(entries) == self._max_entries:
                self._refuse_long_list(entries, name)
            value, offset = self._parse_value(offset, depth, f"{name}.{len(entries)}")
            entries.append(value)
            return offset

        end = self._parse_entries(offset, "]", parse_entry)
        return entries, end

    def _parse_entries(self, offset: int, closing: str, parse_entry: Callable[[int], int]) -> int:
        """Parse comma-separated entries, and return the offset after the closing bracket.

        ``parse_entry`` is called with the offset of each entry, and returns the offset after it.
        """
        text = self._text
        offset = self._skip_whitespace(offset + 1)
        if text[offset : offset + 1] == closing:
            return offset + 1
        while True:
            offset = self._skip_whitespace(parse_entry(offset))
            separator = text[offset : offset + 1]
            if separator == closing:
                return offset + 1
            if separator != ",":
                self._fail("a comma is missing", offset)
            offset = self._skip_whitespace(offset + 1)

    def _refuse_long_list(self, entries: list[Any], name: str) -> NoReturn:
        """Refuse a list that has too many entries. If an entry is not a document, report that instead."""
        for index, entry in enumerate(entries):
            if not _has_text(entry):
                raise RefusedRequest(422, f"{name}.{index} must be a text, or an object with a text")
        reason = f"{name} has more than {self._max_entries} entries, the maximum of a request"
        raise RefusedRequest(413, f"{reason}: send several requests")

    def _parse_scalar(self, offset: int) -> Parsed:
        number = NUMBER.match(self._text, offset)
        if number is not None:
            if number.end() - offset > MAX_NUMBER_CHARACTERS:
                raise RefusedRequest(422, f"the body has a number of more than {MAX_NUMBER_CHARACTERS} characters")
            integer, fraction, exponent = number.groups()
            is_integer = fraction is None and exponent is None
            return int(integer) if is_integer else float(number[0]), number.end()
        constant = CONSTANT.match(self._text, offset)
        if constant is None:
            self._fail("a value is missing", offset)
        return CONSTANTS[constant[0]], constant.end()

    def _parse_as_text(self, offset: int, depth: int, name: str) -> Parsed:
        """Check a document's field that contains an object or a list, and return the value as JSON text."""
        end = self._find_end(offset, depth, name)
        text = self._text[offset:end]
        constants: list[str] = []
        try:
            # `append` notes NaN and Infinity, which are not JSON, and makes them null, because it returns None.
            value = json.loads(text, parse_constant=constants.append)
            if constants or LARGE_EXPONENT.search(text) or not text.isascii():
                # A float with too large an exponent is infinite, for which allow_nan=False raises a ValueError.
                text = json.dumps(value, allow_nan=False)
            return Json(text), end
        except json.JSONDecodeError as error:
            self._fail(error.msg, offset + error.pos)
        except ValueError:  # also for too many digits of an integer
            raise RefusedRequest(422, f"{name} has a number that is too large") from None

    def _find_end(self, offset: int, depth: int, name: str) -> int:
        """Return the offset of the first character after the object or list that begins at ``offset``."""
        text = self._text
        start = offset
        expected: list[str] = []  # the closing brackets that must follow, innermost last
        while offset - start <= MAX_JSON_CHARACTERS:
            character = text[offset : offset + 1]
            if character == '"':
                string = STRING.match(text, offset)
                if string is None:
                    self._fail("a string has no end", offset)
                offset = string.end()
            elif character in CLOSING_BRACKETS:
                expected.append(CLOSING_BRACKETS[character])
                offset += 1
                if depth + len(expected) > MAX_DEPTH:
                    raise RefusedRequest(422, f"{name} has lists or objects nested more than {MAX_DEPTH} deep")
            elif not expected or character != expected.pop():  # also at the end of the text
                self._fail("a bracket has no counterpart", offset)
            else:
                offset += 1
                if not expected:
                    return offset
            offset = NO_QUOTES_OR_BRACKETS.match(text, offset).end()  # type: ignore[union-attr]
        reason = f"{name} has a list or an object of more than {MAX_JSON_CHARACTERS} characters"
        raise RefusedRequest(422, reason)

    def _skip_whitespace(self, offset: int) -> int:
        if self._text[offset : offset + 1] not in " \t\n\r":  # faster than the pattern
            return offset
        return WHITESPACE.match(self._text, offset).end()  # type: ignore[union-attr]

    def _fail(self, reason: str, offset: int) -> NoReturn:
        raise json.JSONDecodeError(reason, "", offset)


def _has_text(entry: Any) -> bool:
    values = entry.values() if isinstance(entry, dict) else [entry]
    return any(isinstance(value, str) for value in values)


def _key_for_message(key: str) -> str:
    """Return a key if it looks like the name of a field, or else "a value", because the key might be confidential."""
    is_name = len(key) <= MAX_KEY_CHARACTERS and key.isascii() and key.isidentifier()
    return key if is_name else "a value"
