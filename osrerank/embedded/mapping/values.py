"""Values as OpenSearch reads them: numbers from strings, dates as milliseconds, wildcards in names."""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

FORMATS = frozenset(
    {"strict_date_optional_time", "date_optional_time", "epoch_millis", "yyyy-MM-dd", "date", "strict_date",
     "yyyy/MM/dd", "yyyy/MM/dd HH:mm:ss", "yyyy-MM-dd HH:mm:ss"}
)  # fmt: skip
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = r"[T ](\d{1,2})(?::(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?"
_ZONE = r"(Z|[+-]\d{2}:?\d{2})?"
_DATE = re.compile(rf"(\d{{4}})(?:[-/](\d{{1,2}})(?:[-/](\d{{1,2}})(?:{_TIME})?{_ZONE})?)?")


@lru_cache(maxsize=1000)
def wildcard(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a name pattern with ``*`` for anything."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def as_text(value: Any) -> str:
    """Return a JSON value as the string that OpenSearch would index."""
    return value if isinstance(value, str) else json.dumps(value)


def as_long(value: Any) -> int:
    """Return a whole number; strings and floats are coerced, a fraction is cut off."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    number = value if isinstance(value, int) else int(float(value)) if isinstance(value, float) else _long_of(value)
    if not LONG_MIN <= number <= LONG_MAX:
        raise OverflowError("beyond 64 bits")
    return number


def _long_of(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def as_whole(value: Any) -> int:
    """Return a whole number; unlike in documents a fraction is an error."""
    if isinstance(value, float | str) and not float(value).is_integer():
        raise ValueError("has a fraction")
    return as_long(value)


def as_double(value: Any) -> float:
    """Return a finite number."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def as_boolean(value: Any) -> int:
    """Return 1 or 0; OpenSearch takes true, false, their names and the empty string for false."""
    known = {True: 1, False: 0, "true": 1, "false": 0, "": 0}
    if isinstance(value, bool | str) and value in known:
        return known[value]
    raise ValueError("neither true nor false")


def as_millis(value: Any) -> int:
    """Return milliseconds since 1970 in UTC from a number or an ISO date or time."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a date")
    if isinstance(value, int | float):
        return int(value)
    return next(iter(date_range(value)))


def date_range(text: str) -> tuple[int, int]:
    """Return the first and last millisecond of a date; a day without a time is the whole day."""
    if re.fullmatch(r"-?\d{5,}", text):
        return int(text), int(text)
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    *parts, fraction, zone = match.groups()
    numbers = [int(part) for part in parts if part]
    year, month, day, hour, minute, second = [*numbers, *(1, 1, 1, 0, 0, 0)[len(numbers) :]]
    start = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _offset(zone)
    first = (start - EPOCH) // timedelta(milliseconds=1) + int(((fraction or "") + "000")[:3])
    return first, first + _length_ms(start, len(numbers), fraction) - 1


def _offset(zone: str | None) -> timedelta:
    if zone in (None, "Z"):
        return timedelta()
    assert zone is not None
    digits = zone[1:].replace(":", "")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -size if zone[0] == "-" else size


def _length_ms(start: datetime, parts: int, fraction: str | None) -> int:
    """Return the length of the smallest unit that a date of this many parts names."""
    if fraction:
        return 1
    if parts == 1:
        end = start.replace(year=start.year + 1)
    elif parts == 2:
        end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    else:
        end = start + (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))[parts - 3]
    return (end - start) // timedelta(milliseconds=1)


def millis_text(millis: int) -> str:
    """Return a date column's value as OpenSearch prints it."""
    return (EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def looks_like_date(value: Any) -> bool:
    """Return whether a dynamic string field would become a date."""
    if not isinstance(value, str) or not any(mark in value for mark in "-/:"):
        return False
    try:
        date_range(value)
    except ValueError:
        return False
    return _DATE.fullmatch(value) is not None


def known_format(form: str) -> bool:
    """Return whether the engine supports all of these date formats."""
    return all(part in FORMATS for part in form.split("||"))


CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "long": as_long,
    "integer": as_long,
    "short": as_long,
    "byte": as_long,
    "date": as_millis,
    "boolean": as_boolean,
    "double": as_double,
    "float": as_double,
    "half_float": as_double,
}
