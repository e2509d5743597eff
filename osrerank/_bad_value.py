"""Describe values that are not as expected, in sentences instead of the words of Python and pydantic."""

import re
from collections.abc import Mapping
from typing import Any

_JSON_TYPES = {
    "NoneType": "null", "bool": "a boolean", "int": "a number", "float": "a number", "str": "a string",
    "string": "a string", "list": "a list", "tuple": "a list", "dict": "an object",
}  # fmt: skip
"""JSON's names of types, by the names in Python's messages."""
_PYTHON_WRONG_TYPES = {
    r"'(\w+)' object is not iterable": "a list",
    r"cannot unpack non-iterable (\w+) object": "a list",
    r"'(\w+)' object is not subscriptable": "a list or an object",
    r"'(\w+)' object is not a mapping": "an object",
    r".*argument after \*\* must be a mapping, not (\w+)": "an object",
    r"'(\w+)' object has no attribute '(?:items|keys|values|get|pop)'": "an object",
    r"'(\w+)' object has no attribute '(?:split|strip|lower|endswith)'": "a string",
    r"(string|list|tuple) indices must be integers.*": "an object",
    r"must be real number, not (\w+)": "a number",
    r"(?:float|int)\(\) argument must be .*, not '(\w+)'": "a number",
}
"""Patterns of Python's messages about a value of the wrong type, with the type that was expected."""
_PYTHON_SENTENCES = {
    r".*got an unexpected keyword argument '(\w+)'": "there is no field {!r}",
    r".*missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'.*": "{!r} is missing",
    r"could not convert string to float: '(.*)'": "{!r} is not a number",
    r"invalid literal for int\(\) with base 10: '(.*)'": "{!r} is not a whole number",
    r"not enough values to unpack \(expected (?:at least )?(\d+).*": "a list has fewer than {} entries",
    r"too many values to unpack \(expected (\d+).*": "a list has more than {} entries",
}
"""Patterns of other messages of Python about a value, with the sentence that stands for each."""
_PYDANTIC_EXPECTED = {
    "bool_parsing": "true or false", "bool_type": "true or false", "dataclass_type": "an object",
    "dict_type": "an object", "float_parsing": "a number", "float_type": "a number", "int_from_float": "a whole number",
    "int_parsing": "a whole number", "int_type": "a whole number", "list_type": "a list",
    "model_attributes_type": "an object", "model_type": "an object", "string_type": "a string",
    "tuple_type": "a list", "finite_number": "a finite number", "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}", "less_than": "below {lt}", "less_than_equal": "at most {le}",
    "literal_error": "{expected}", "enum": "{expected}",
}  # fmt: skip
"""What a value must be, by the type of pydantic's error. Names in braces are in the error's context."""
_PYDANTIC_SENTENCES = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "unexpected_keyword_argument": "there is no such field",
    "string_too_short": "it must have at least {min_length} characters",
    "string_too_long": "it must have at most {max_length} characters",
    "string_pattern_mismatch": "it must match the pattern {pattern}",
    "too_short": "it must have at least {min_length} entries",
    "too_long": "it must have at most {max_length} entries",
    "json_invalid": "it is not JSON: {error}",
}
"""Sentences for the other types of pydantic's errors."""


def describe_bad_value(error: Exception) -> str:
    """Describe the error of reading a JSON value: "'text' is missing" for a `KeyError`, or else its message."""
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    message = str(error)
    for pattern, expected in _PYTHON_WRONG_TYPES.items():
        if match := re.fullmatch(pattern, message):
            return f"{_JSON_TYPES.get(match[1], match[1])} stands where {expected} is expected"
    for pattern, sentence in _PYTHON_SENTENCES.items():
        if match := re.fullmatch(pattern, message):
            return sentence.format(match[1])
    return message


def describe_validation_error(error: Mapping[str, Any]) -> str:
    """Describe one of pydantic's errors, such as "it must be a whole number". Unknown ones keep pydantic's words."""
    kind = error["type"]
    if kind in _PYDANTIC_EXPECTED:
        sentence = f"it must be {_PYDANTIC_EXPECTED[kind]}"
    else:
        sentence = _PYDANTIC_SENTENCES.get(kind, "")
    try:
        described = sentence.format(**error.get("ctx", {}))
    except KeyError:  # the error has no context
        described = ""
    return described or str(error["msg"]).removeprefix("Value error, ")
