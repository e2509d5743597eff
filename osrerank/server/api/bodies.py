"""Parse the bodies of requests, within limits of count, depth and size that hold before a value is built.

The parser is Python code that works in small steps, so that a large body in a thread does not hold up the event loop.
Values that no dialect reads, such as a list in a document's field, stay JSON text, to be returned with their document.
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
"""How deep objects and lists are parsed: the body, its list of documents, and a document."""
MOST_DEPTH = 64
"""How deep objects and lists may be nested at all."""
MOST_DIGITS = 100
"""The most characters of a number."""
MOST_KEYS = 1_000
"""The most keys of an object that is parsed."""
MOST_PASSED = 1 << 20
"""The most characters of a value that stays JSON text."""
PIECE_BYTES = 1 << 20
NAMED = 32
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

Read = tuple[Any, int]
"""A value, and the offset of the character after it."""


def inflated(body: bytes, most_bytes: int) -> bytes:
    """Decompress a gzip body, and stop as soon as the content is too large.

    Raises:
        RefusedRequest: the body is not gzip (400), or its content is too large (413).
    """
    content = bytearray()
    while True:
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            while not inflater.eof:
                piece = inflater.decompress(body, PIECE_BYTES)
                body = inflater.unconsumed_tail
                content += piece
                if len(content) > most_bytes:
                    reason = f"the inflated body may have {most_bytes} bytes: send fewer or shorter documents"
                    raise RefusedRequest(413, reason)
                if not piece and not body and not inflater.eof:
                    raise RefusedRequest(400, "the gzip body ends too soon: send all of it")
        except zlib.error:
            raise RefusedRequest(400, "the body is not gzip, as its Content-Encoding says") from None
        body = inflater.unused_data
        if not body:
            return bytes(content)


def read_body(body: bytes, most_entries: int) -> dict[str, Any]:
    """Parse a body that is a JSON object.

    Args:
        body: the bytes, in UTF-8 or another encoding that `json.detect_encoding` recognises.
        most_entries: the most entries of a list.

    Raises:
        RefusedRequest: the body is not JSON (400), has too many entries (413), or is no object (422). No message
            repeats a value.
    """
    if not body.strip():
        raise RefusedRequest(422, "the body: it is empty; send a JSON object")
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        return _Reader(text, most_entries).body()
    except UnicodeDecodeError:
        raise RefusedRequest(400, "the body is not JSON: its encoding is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RefusedRequest(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None


class _Reader:
    """Parses a text from left to right; ``at`` is the offset of the next character."""

    def __init__(self, text: str, most_entries: int) -> None:
        self._text = text
        self._most_entries = most_entries

    def body(self) -> dict[str, Any]:
        at = self._space(0)
        if self._text[at : at + 1] != "{":
            if self._text[at : at + 1] not in ("[", '"'):
                self._scalar(at)
            raise RefusedRequest(422, "the body: it must be a JSON object")
        value, at = self._object(at, 1, "")
        if self._space(at) != len(self._text):
            self._fail("there is text after the object", at)
        return value

    def _value(self, at: int, depth: int, name: str) -> Read:
        """Parse the value that begins at an offset, at a depth of nesting; an error begins with the name."""
        first = self._text[at : at + 1]
        if first == '"':
            string: Read = scanstring(self._text, at + 1, True)  # noqa: FBT003 - a C function
            return string
        if first not in CLOSES:
            return self._scalar(at)
        if depth == READ_DEPTH:
            return self._passed(at, depth, name)
        return self._object(at, depth + 1, name) if first == "{" else self._array(at, depth + 1, name)

    def _object(self, at: int, depth: int, name: str) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}

        def member(at: int) -> int:
            if self._text[at : at + 1] != '"':
                self._fail("a key in double quotes is missing", at)
            key, at = scanstring(self._text, at + 1, True)  # noqa: FBT003 - a C function
            if key in members:
                raise RefusedRequest(422, f"{name or 'the body'}: a key occurs twice")
            if len(members) == MOST_KEYS:
                raise RefusedRequest(422, f"{name or 'the body'}: more than {MOST_KEYS} keys")
            at = self._space(at)
            if self._text[at : at + 1] != ":":
                self._fail("a colon is missing", at)
            members[key], at = self._value(self._space(at + 1), depth, name or _named(key))
            return at

        return members, self._entries(at, "}", member)

    def _array(self, at: int, depth: int, name: str) -> tuple[list[Any], int]:
        entries: list[Any] = []

        def entry(at: int) -> int:
            if len(entries) == self._most_entries:
                self._refuse_count(entries, name)
            value, at = self._value(at, depth, f"{name}.{len(entries)}")
            entries.append(value)
            return at

        return entries, self._entries(at, "]", entry)

    def _entries(self, at: int, closing: str, entry: Callable[[int], int]) -> int:
        """Parse entries with commas between them; return the offset after the closing bracket."""
        text = self._text
        at = self._space(at + 1)
        if text[at : at + 1] == closing:
            return at + 1
        while True:
            at = self._space(entry(at))
            divider = text[at : at + 1]
            if divider == closing:
                return at + 1
            if divider != ",":
                self._fail("a comma is missing", at)
            at = self._space(at + 1)

    def _refuse_count(self, entries: list[Any], name: str) -> NoReturn:
        wrong = next((at for at, entry in enumerate(entries) if not _has_text(entry)), None)
        if wrong is not None:
            raise RefusedRequest(422, f"{name}.{wrong}: it must be a text, or an object with one")
        raise RefusedRequest(
            413,
            f"{name}: a request may have {self._most_entries} of them, and there are more: send several requests",
        )

    def _scalar(self, at: int) -> Read:
        number = NUMBER.match(self._text, at)
        if number is not None and self._text[at : at + 2] != "-I":
            if number.end() - at > MOST_DIGITS:
                raise RefusedRequest(422, f"the body: a number of more than {MOST_DIGITS} characters")
            whole = number[2] is None and number[3] is None
            return int(number[1]) if whole else float(number[0]), number.end()
        word = WORD.match(self._text, at)
        if word is None:
            self._fail("a value is missing", at)
        return WORDS[word[0]], word.end()

    def _passed(self, at: int, depth: int, name: str) -> Read:
        """Return an object or list that no dialect reads as JSON text, after checking it."""
        end = self._end(at, depth, name)
        text = self._text[at:end]
        constants: list[str] = []
        try:
            value = json.loads(text, parse_constant=constants.append)  # NaN, which is no JSON, becomes null
            if constants or HUGE.search(text):
                return Json(json.dumps(value, allow_nan=False)), end
            return Json(text if text.isascii() else json.dumps(value)), end
        except json.JSONDecodeError as error:
            self._fail(error.msg, at + error.pos)
        except ValueError:  # too many digits for an integer, or too large an exponent for a float
            raise RefusedRequest(422, f"{name}: it has a number that is too large") from None

    def _end(self, at: int, depth: int, name: str) -> int:
        """Return the offset after an object or list."""
        text, start = self._text, at
        closing: list[str] = []
        while at - start <= MOST_PASSED:
            first = text[at : at + 1]
            if first == '"':
                string = STRING.match(text, at) or self._fail("a string has no end", at)
                at = string.end()
            elif first in CLOSES:
                closing.append(CLOSES[first])
                at += 1
                if depth + len(closing) > MOST_DEPTH:
                    raise RefusedRequest(422, f"{name}: lists or objects are nested more than {MOST_DEPTH} deep")
            elif not closing or first != closing.pop():
                self._fail("a bracket has no counterpart", at)
            else:
                at += 1
                if not closing:
                    return at
            at = PLAIN.match(text, at).end()  # type: ignore[union-attr]
        raise RefusedRequest(422, f"{name}: a list or an object within it has more than {MOST_PASSED} characters")

    def _space(self, at: int) -> int:
        if self._text[at : at + 1] not in " \t\n\r":
            return at
        return SPACE.match(self._text, at).end()  # type: ignore[union-attr]

    def _fail(self, reason: str, at: int) -> NoReturn:
        raise json.JSONDecodeError(reason, "", at)


def _has_text(entry: Any) -> bool:
    texts = entry.values() if isinstance(entry, dict) else [entry]
    return any(isinstance(text, str) for text in texts)


def _named(key: str) -> str:
    """Return how an error message names a key: as it is if it looks like a field's name, else "a value"."""
    return key if len(key) <= NAMED and key.isascii() and key.isidentifier() else "a value"
