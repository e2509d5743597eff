"""Convert the values in documents and queries to the types of tantivy's columns, and back, as OpenSearch does."""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

INTEGER_BITS = {"long": 63, "integer": 31}
"""The number of bits of each type of whole numbers, without the sign."""
_DAY_MS = 86_400_000
DURATIONS_MS = (_DAY_MS, _DAY_MS, _DAY_MS, 3_600_000, 60_000, 1000)
"""The length of the period that a date stands for, by its last part: year, month, day, hour, minute or second.

``2024`` and ``2024-05`` stand for their first day, ``2024-05-01T10`` for an hour.
"""
FIRST_PARTS = (1, 1, 1, 0, 0, 0)
"""The first year, month, day, hour, minute and second. They stand for the parts that a date leaves out."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = r"(?:(\d{2})(?::(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?)?"
_DATE = re.compile(rf"(\d{{4}})(?:-(\d{{2}})(?:-(\d{{2}})(?:T{_TIME}(Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?)?)?", re.ASCII)
"""Matches a date in OpenSearch's format ``strict_date_optional_time``."""
SLASHED_DATE = re.compile(r"\d{4}/\d{2}/\d{2}(?: \d{2}:\d{2}:\d{2})?", re.ASCII)
"""Matches a date such as ``2024/05/01``, for which OpenSearch has another date format."""


@lru_cache(maxsize=1000)
def compile_wildcard(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for a pattern in which ``*`` matches any text."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def as_text(value: Any) -> str:
    """Return a JSON value as the string that OpenSearch would index: ``true`` for True."""
    return value if isinstance(value, str) else json.dumps(value)


def count_utf16_units(text: str) -> int:
    """Return the length of a text as Java counts it: characters above U+FFFF, such as most emoji, count twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def as_long(value: Any, kind: str = "long") -> int:
    """Convert a number or string to a whole number of this kind. A fraction is dropped: 7 for "7.9".

    Raises:
        OverflowError: the number is out of the kind's range.
    """
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    number = int(value) if isinstance(value, int | float) else _parse_long(value)
    if not -(2 ** INTEGER_BITS[kind]) <= number < 2 ** INTEGER_BITS[kind]:
        raise OverflowError(f"out of range for {kind}")
    return number


def _parse_long(text: str) -> int:
    _check_digits(text)
    if text != text.strip():  # unlike in a float
        raise ValueError(f"{text!r} is not a whole number")
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _check_digits(text: str) -> None:
    """Raise a `ValueError` for a number that Python reads but OpenSearch does not, such as ``1_000``."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a number")


def has_fraction(value: Any) -> bool:
    """Return whether a number, or the number in a string, has a fraction."""
    if isinstance(value, str):
        _check_digits(value)
        return not float(value).is_integer() and value == value.strip()
    return isinstance(value, float) and not value.is_integer()


def as_float(value: Any) -> float:
    """Convert a number or string to the nearest 32-bit float."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    if isinstance(value, str):
        _check_digits(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    (rounded,) = struct.unpack("<f", struct.pack("<f", number))
    return float(rounded)


def as_boolean(value: Any) -> int:
    """Convert a boolean, or the string "true" or "false", to 1 or 0. An empty string counts as false."""
    booleans = {True: 1, False: 0, "true": 1, "false": 0, "": 0}
    if isinstance(value, bool | str) and value in booleans:
        return booleans[value]
    raise ValueError("neither true nor false")


def as_millis(value: Any) -> int:
    """Convert an ISO date or a number to milliseconds since 1970 in UTC."""
    first, _ = parse_date_range(value)
    return first


def parse_date_range(value: Any) -> tuple[int, int]:
    """Return the first and last millisecond of the period that a date stands for.

    ``1970-01-02`` becomes ``(86400000, 172799999)``. As in OpenSearch, a number of four digits is a year, and any other
    number is in milliseconds since 1970.
    """
    if isinstance(value, bool):
        raise TypeError("a boolean is not a date")
    text = as_text(value)
    match = _DATE.fullmatch(text)
    if match is None:
        if not re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII):
            raise ValueError(f"{text!r} is not a date")
        millis = as_long(text.partition(".")[0])
        return millis, millis
    *groups, fraction, zone = match.groups()
    parts = [int(group) for group in groups if group]  # the year, and as many of the next parts as the date has
    year, month, day, hour, minute, second = [*parts, *FIRST_PARTS[len(parts) :]]
    start = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _utc_offset(zone)
    fraction_ms = int((fraction or "").ljust(3, "0")[:3])
    duration_ms = 1 if fraction else DURATIONS_MS[len(parts) - 1]
    first = (start - EPOCH) // timedelta(milliseconds=1) + fraction_ms
    return first, first + duration_ms - 1


def _utc_offset(zone: str | None) -> timedelta:
    """Return the offset of a time zone such as ``+02:00``, ``+0200``, ``+02`` or ``Z``."""
    if zone is None or zone == "Z":
        return timedelta()
    digits = zone[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    return -offset if zone[0] == "-" else offset


def format_millis(millis: int) -> str:
    """Format a date in milliseconds as OpenSearch does, such as ``2024-05-01T10:00:00.000Z``."""
    return (EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def looks_like_date(value: str) -> bool:
    """Return whether OpenSearch would map a new property with this value as a date."""
    if value.isdigit() or not _DATE.fullmatch(value):
        return False
    try:
        parse_date_range(value)  # raises an error for 2024-13-01
    except ValueError:
        return False
    return True


def format_value(kind: str, value: Any) -> Any:
    """Format a column's value as OpenSearch does in the ``fields`` of a hit: true for the boolean 1."""
    if kind == "date":
        return format_millis(value)
    if kind == "float":
        return shorten_float(value)
    return bool(value) if kind == "boolean" else value


def last_value(kind: str, *, is_descending: bool) -> float | None:
    """Return the last value of a field's type, by which a document without a value is sorted. None for text."""
    if kind == "keyword":
        return None
    if kind == "float":
        return -math.inf if is_descending else math.inf
    limit: int = 2 ** INTEGER_BITS["long" if kind in ("long", "date") else "integer"]
    return -limit if is_descending else limit - 1


def shorten_float(number: float) -> float:
    """Return the number with the fewest digits that rounds to this 32-bit float, such as 0.1 for 0.10000000149."""
    shortened = (float(f"{number:.{n_digits}g}") for n_digits in range(1, 18))
    return next(candidate for candidate in shortened if as_float(candidate) == number)


CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "long": as_long,
    "integer": partial(as_long, kind="integer"),
    "date": as_millis,
    "boolean": as_boolean,
    "float": as_float,
}
"""For each of OpenSearch's field types, the function that converts a value to the type of the column."""
