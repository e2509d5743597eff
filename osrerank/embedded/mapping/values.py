"""Values as OpenSearch reads them: numbers from strings, dates as milliseconds, wildcards in names."""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

RANGES = {"long": 63, "integer": 31}
"""The bits of each kind of whole number, without its sign."""
UNITS_MS = (86_400_000, 86_400_000, 86_400_000, 3_600_000, 60_000, 1000)
"""How long dates of one to six parts last, in milliseconds; a year or a month means its first day, as in OpenSearch."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = r"(?:(\d{2})(?::(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?)?"
_DATE = re.compile(rf"(\d{{4}})(?:-(\d{{2}})(?:-(\d{{2}})(?:T{_TIME}(Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?)?)?")
"""OpenSearch's ``strict_date_optional_time``."""
SLASHED_DATE = re.compile(r"\d{4}/\d{2}/\d{2}(?: \d{2}:\d{2}:\d{2})?")
"""Dates with slashes, which OpenSearch maps as dates of another format."""


@lru_cache(maxsize=1000)
def wildcard(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a name pattern with ``*`` for anything."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def as_text(value: Any) -> str:
    """Return a JSON value as the string that OpenSearch would index."""
    return value if isinstance(value, str) else json.dumps(value)


def as_long(value: Any, kind: str = "long") -> int:
    """Return a whole number; strings and floats are coerced, a fraction is cut off.

    Raises:
        OverflowError: the number is out of the kind's range.
    """
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    number = value if isinstance(value, int) else int(float(value)) if isinstance(value, float) else _long_of(value)
    if not -(2 ** RANGES[kind]) <= number < 2 ** RANGES[kind]:
        raise OverflowError(f"out of range for {kind}")
    return number


def _long_of(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def has_fraction(value: Any) -> bool:
    """Return whether a number, or the number in a string, has a fraction."""
    return isinstance(value, float | str) and not float(value).is_integer()


def as_float(value: Any) -> float:
    """Return the 32-bit float nearest to a finite number."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def as_boolean(value: Any) -> int:
    """Return 1 or 0 for true or false; OpenSearch also takes their names, and the empty string for false."""
    booleans = {True: 1, False: 0, "true": 1, "false": 0, "": 0}
    if isinstance(value, bool | str) and value in booleans:
        return booleans[value]
    raise ValueError("neither true nor false")


def as_millis(value: Any) -> int:
    """Return milliseconds since 1970 in UTC from a number or an ISO date or time."""
    return next(iter(date_range(value)))


def date_range(value: Any) -> tuple[int, int]:
    """Return the first and last millisecond of a date; a day without a time is the whole day.

    Numbers are read as text, as OpenSearch reads them: four digits are a year, others milliseconds since 1970.
    """
    if isinstance(value, bool):
        raise TypeError("a boolean is not a date")
    text = value if isinstance(value, str) else json.dumps(value)
    match = _DATE.fullmatch(text)
    if match is None:
        if not re.fullmatch(r"-?\d+(\.\d+)?", text):
            raise ValueError(f"{text!r} is not a date")
        millis = as_long(text.partition(".")[0])
        return millis, millis
    *digits, fraction, zone = match.groups()
    numbers = [int(group) for group in digits if group]
    year, month, day, hour, minute, second = [*numbers, *(1, 1, 1, 0, 0, 0)[len(numbers) :]]
    start = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _offset(zone)
    first = (start - EPOCH) // timedelta(milliseconds=1) + int(((fraction or "") + "000")[:3])
    return first, first + (1 if fraction else UNITS_MS[len(numbers) - 1]) - 1


def _offset(zone: str | None) -> timedelta:
    if zone in (None, "Z"):
        return timedelta()
    assert zone is not None
    digits = zone[1:].replace(":", "")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0))
    return -size if zone[0] == "-" else size


def millis_text(millis: int) -> str:
    """Return a date column's value as OpenSearch prints it."""
    return (EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def looks_like_date(value: str) -> bool:
    """Return whether OpenSearch would map a new property with this string as a date."""
    try:
        return not value.isdigit() and _DATE.fullmatch(value) is not None and bool(date_range(value))
    except ValueError:
        return False


def shown(kind: str, value: Any) -> Any:
    """Return a column's value as OpenSearch shows it among a hit's ``fields``."""
    if kind == "date":
        return millis_text(value)
    if kind == "float":
        return shortest(value)
    return bool(value) if kind == "boolean" else value


def shortest(number: float) -> float:
    """Return the 64-bit float with the fewest digits that rounds to this 32-bit float."""
    return next(short for digits in range(1, 18) if as_float(short := float(f"{number:.{digits}g}")) == number)


CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "long": as_long,
    "integer": partial(as_long, kind="integer"),
    "date": as_millis,
    "boolean": as_boolean,
    "float": as_float,
}
