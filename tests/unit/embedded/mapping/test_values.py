"""Dates and numbers in the embedded engine, as OpenSearch reads and shows them."""

from typing import Any

import pytest

from osrerank.embedded.mapping import values

DAY = 86_400_000


@pytest.mark.parametrize(
    ("given", "first", "length_ms"),
    [
        ("1970", 0, DAY),  # OpenSearch rounds a year up to the end of its first day
        (1970, 0, DAY),
        ("1970-02", 31 * DAY, DAY),
        ("1970-01-02", DAY, DAY),
        ("1970-01-01T01", 3_600_000, 3_600_000),
        ("1970-01-01T00:01", 60_000, 60_000),
        ("1970-01-01T00:00:01Z", 1000, 1000),
        ("1970-01-01T01:00:00.250+01:00", 250, 1),
        ("86400000", DAY, 1),
        (-5, -5, 1),
        ("9999-12-31", 253_402_214_400_000, DAY),
    ],
)
def test_dates_in_opensearchs_formats_are_read(given: Any, first: int, length_ms: int) -> None:
    assert values.parse_date_range(given) == (first, first + length_ms - 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "1970-13-01",
        "70-01-01",
        "1970-1-1",
        "1970/01/01",
        "1970-01-01 10:00",
        "1970-01-01T25:00",
        "\uff11\uff19\uff17\uff10",
    ],
)
def test_malformed_dates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        values.parse_date_range(text)


def test_a_float_has_32_bits_and_is_shown_with_the_fewest_digits() -> None:
    rounded = values.as_float("1.1")
    assert rounded != 1.1
    assert values.format_value("float", rounded) == 1.1
    with pytest.raises(OverflowError):
        values.as_float(1e39)


@pytest.mark.parametrize("text", ["1_000", "\uff11", "1_0.5", "٣"])
def test_numbers_that_only_python_reads_are_refused(text: str) -> None:
    for convert in (values.as_long, values.as_float, values.has_fraction):
        with pytest.raises(ValueError, match="is not a number"):
            convert(text)


def test_the_length_of_a_text_is_javas() -> None:
    assert [values.count_utf16_units(text) for text in ("", "tea", "é", "👍🏽", "\ud800")] == [0, 3, 1, 4, 1]


def test_a_whole_number_has_no_spaces_around_it() -> None:
    for text in (" 1", "1\n"):
        with pytest.raises(ValueError, match="is not a whole number"):
            values.as_long(text)
    assert values.as_float(" 1.5") == 1.5
