"""The sentences that describe values that are not as expected."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError

from osrerank._bad_value import describe_bad_value, describe_validation_error


@dataclass
class Point:
    x: int
    y: int = 0


def get(value: Any, key: str) -> Any:
    return value[key]


def unpack(value: Any) -> None:
    _first, _second = value


@pytest.mark.parametrize(
    ("read", "description"),
    [
        (lambda: get({}, "text"), "'text' is missing"),
        (lambda: tuple(None), "null stands where a list is expected"),
        (lambda: unpack(1.5), "a number stands where a list is expected"),
        (lambda: unpack([1]), "a list has fewer than 2 entries"),
        (lambda: unpack([1, 2, 3]), "a list has more than 2 entries"),
        (lambda: get(True, "doc_id"), "a boolean stands where a list or an object is expected"),
        (lambda: get("d7", "doc_id"), "a string stands where an object is expected"),
        (lambda: get(["d7"], "doc_id"), "a list stands where an object is expected"),
        (lambda: dict(["d7"].items()), "a list stands where an object is expected"),
        (lambda: len((7).split()), "a number stands where a string is expected"),
        (lambda: math.isfinite("high"), "a string stands where a number is expected"),
        (lambda: float([]), "a list stands where a number is expected"),
        (lambda: float("high"), "'high' is not a number"),
        (lambda: int("high"), "'high' is not a whole number"),
        (lambda: Point(x=1, z=2), "there is no field 'z'"),
        (lambda: Point(y=2), "'x' is missing"),
        (lambda: Point(**[1]), "a list stands where an object is expected"),
    ],
)
def test_python_s_messages_become_sentences(read, description):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)) as caught:
        read()
    assert describe_bad_value(caught.value) == description


def test_other_messages_are_kept():
    assert describe_bad_value(ValueError("the score is high")) == "the score is high"


@pytest.mark.parametrize(
    ("kind", "value", "description"),
    [
        (int, "many", "it must be a whole number"),
        (bool, "perhaps", "it must be true or false"),
        (Literal["auto", "on"], "off", "it must be 'auto' or 'on'"),
        (Point, {"x": 1, "y": "low"}, "it must be a whole number"),
        (Point, {"y": 1}, "it is missing"),
    ],
)
def test_pydantic_s_errors_become_sentences(kind, value, description):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert describe_validation_error(caught.value.errors()[0]) == description


def test_an_unknown_error_of_pydantic_keeps_its_words():
    assert describe_validation_error({"type": "ip_any_address", "msg": "no address"}) == "no address"
    assert describe_validation_error({"type": "greater_than", "msg": "it is too low"}) == "it is too low"
