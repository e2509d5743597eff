"""Read groups of options, each a name, a dict or an object, and check their values."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from osrerank._removed import replacement_for
from osrerank.errors import ConfigError

Options = TypeVar("Options")


def read_options(kind: type[Options], value: Any, option: str, *, first: str = "") -> Options | None:
    """Read a group of search options into its dataclass; return None if the value is None or False.

    Args:
        kind: the dataclass of the group.
        value: an object of the dataclass, a dict, True for the defaults, None or False.
        option: the name of the group in ``rerank``.
        first: the option that a text alone sets; empty if a text is an error.

    Raises:
        ConfigError: the value is none of these, or a key or value in it cannot be used.
    """
    if isinstance(value, kind):
        return value
    if value is None or value is False:
        return None
    if value is True:
        return kind()
    if first and isinstance(value, str):
        value = {first: value}
    if not isinstance(value, Mapping):
        name = f"a {first} by name, " if first else ""
        fix = replacement_for(f"rerank.{option}.{value}") or f"it must be {name}a dict of options, True or None"
        message = f"rerank option {option} is {value!r}; {fix}"
        raise ConfigError(message, setting=f"rerank.{option}", source="argument")
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # always one of our dataclasses
    for name in value:
        if name not in names:
            fix = replacement_for(f"rerank.{option}.{name}") or f"known are {', '.join(names)}"
            message = f"rerank option {option} has no {name!r}; {fix}"
            raise ConfigError(message, setting=f"rerank.{option}.{name}", source="argument")
    return kind(**value)


def unusable(option: str, value: object, expected: str) -> ConfigError:
    """Return the error for a value that an option, ``GROUP.NAME``, cannot have."""
    message = f"rerank option {option} is {value!r}; it must be {expected}"
    return ConfigError(message, setting=f"rerank.{option}", source="argument")


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_name(value: object) -> bool:
    """Return whether a value is a non-empty text."""
    return isinstance(value, str) and bool(value)


def is_share(value: Any) -> bool:
    """Return whether a value is a number in [0, 1]."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
