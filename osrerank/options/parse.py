"""Parse and validate groups of search options, such as ``pairs`` and ``rm3``."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from osrerank._removed import find_replacement
from osrerank.errors import ConfigError

Options = TypeVar("Options")


def parse_options(group: type[Options], value: Any, option: str, *, text_key: str = "") -> Options | None:
    """Parse a group of search options into its dataclass, or into None if the value is None or False.

    Args:
        group: the dataclass of the group.
        value: an instance of the dataclass, a dict of options, True for the defaults, None or False.
        option: the group's name in ``rerank``, such as ``pairs``.
        text_key: the option that a string sets: with ``aggregation``, the string ``"sum"`` is parsed as
            ``{"aggregation": "sum"}``. If empty, a string is an error.

    Raises:
        ConfigError: the value has another type, an unknown key, or an invalid value.
    """
    if isinstance(value, group):
        return value
    if value is None or value is False:
        return None
    if value is True:
        return group()
    if text_key and isinstance(value, str):
        value = {text_key: value}
    if not isinstance(value, Mapping):
        text_hint = f"a string (the {text_key}), " if text_key else ""
        # An option that was renamed or removed has a replacement.
        fix = find_replacement(f"rerank.{option}.{value}") or f"it must be {text_hint}a dict of options, True or None"
        message = f"rerank option {option} is {value!r}; {fix}"
        raise ConfigError(message, setting=f"rerank.{option}", source="argument")
    names = [field.name for field in fields(group)]  # type: ignore[arg-type]  # always one of our dataclasses
    for name in value:
        if name not in names:
            fix = find_replacement(f"rerank.{option}.{name}") or f"its options are {', '.join(names)}"
            message = f"rerank option {option} has no {name!r}; {fix}"
            raise ConfigError(message, setting=f"rerank.{option}.{name}", source="argument")
    return group(**value)


def invalid_option(option: str, value: object, expected: str) -> ConfigError:
    """Return the error for an invalid value: "rerank option rm3.terms is 0; it must be a whole number of at least 1".

    Args:
        option: the option's name, such as ``rm3.terms``.
        value: the invalid value.
        expected: a description of the valid values, such as "a whole number of at least 1".
    """
    message = f"rerank option {option} is {value!r}; it must be {expected}"
    return ConfigError(message, setting=f"rerank.{option}", source="argument")


def is_count(value: object) -> bool:
    """Return whether a value is a whole number of at least 1. False for True, although a bool is an int in Python."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_nonempty_string(value: object) -> bool:
    """Return whether a value is a non-empty string."""
    return isinstance(value, str) and bool(value)


def is_fraction(value: Any) -> bool:
    """Return whether a value is a number in [0, 1]. False for a bool, although it is an int in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
