import pytest

from osrerank.embedded.mapping import values


@pytest.mark.parametrize(
    ("text", "first", "length_ms"),
    [
        ("1970", 0, 365 * 86_400_000),
        ("1970-02", 31 * 86_400_000, 28 * 86_400_000),
        ("1970-01-02", 86_400_000, 86_400_000),
        ("1970-01-01T00:01", 60_000, 60_000),
        ("1970-01-01T00:00:01Z", 1000, 1000),
        ("1970-01-01T01:00:00.250+01:00", 250, 1),
        ("1970/01/02 00:00:00", 86_400_000, 1000),
        ("86400000", 86_400_000, 1),
    ],
)
def test_dates(text: str, first: int, length_ms: int) -> None:
    assert values.date_range(text) == (first, first + length_ms - 1)


@pytest.mark.parametrize("text", ["", "yesterday", "1970-13-01", "70-01-01", "1970-01-01T25:00"])
def test_no_dates(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        values.date_range(text)
