"""The engine's small functions: minimum_should_match, dates, source filters, fields of documents."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.embedded.errors import Fault
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import Fields, merge
from osrerank.embedded.mapping.source import source_filter
from osrerank.embedded.query.clauses import minimum_should_match


@pytest.mark.parametrize(
    ("given", "clauses", "least"),
    [
        (None, 4, 0), (2, 4, 2), ("-1", 4, 3), ("75%", 4, 3), ("-25%", 4, 3), ("30%", 3, 0), ("3<90%", 3, 3),
        ("3<90%", 10, 9), ("2<-25% 9<-3", 2, 2), ("2<-25% 9<-3", 8, 6), ("2<-25% 9<-3", 12, 9), ("7", 4, 7),
    ],
)  # fmt: skip
def test_minimum_should_match(given: Any, clauses: int, least: int) -> None:
    assert minimum_should_match(given, clauses, "match") == least


def test_minimum_should_match_that_cannot_be_read() -> None:
    with pytest.raises(Fault, match="most"):
        minimum_should_match("most", 3, "match")


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


def test_values_of_a_document() -> None:
    fields = Fields(
        {
            "properties": {
                "title": {"type": "text", "fields": {"raw": {"type": "keyword", "ignore_above": 5}}},
                "made": {"properties": {"year": {"type": "integer"}}},
                "hidden": {"type": "object", "enabled": False},
                "stored": {"type": "keyword", "index": False},
            }
        }
    )
    source = {
        "title": ["short", "too long"],
        "made": [{"year": "1999"}, {"year": 2000.0}],
        "hidden": {"a": 1},
        "stored": "x",
    }
    assert fields.extract(source) == {"title": ["short", "too long"], "title.raw": ["short"], "made.year": [1999, 2000]}
    assert fields.additions(source) == {}
    assert fields.additions({"new": {"a": 1}}) == {"properties": {"new": {"properties": {"a": {"type": "long"}}}}}
    for clash in ({"title": {"inner": 1}}, {"made": 3}, {"made": {"year": "x"}}):
        with pytest.raises(Fault) as caught:
            assert fields.additions(clash) or fields.extract(clash)
        assert caught.value.kind == "mapper_parsing_exception"


def test_mappings_grow_only() -> None:
    old = {"properties": {"a": {"type": "text"}, "b": {"properties": {"c": {"type": "long"}}}}}
    new = {"properties": {"b": {"properties": {"d": {"type": "long"}}}}}
    assert set(Fields(merge(old, new)).by_path) == {"a", "b.c", "b.d"}
    with pytest.raises(Fault, match=r"\[a\] cannot be changed"):
        merge(old, {"properties": {"a": {"type": "keyword"}}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
def test_source_filters_keep_or_drop_all(source: dict[str, Any]) -> None:
    assert source_filter("*").apply(source) == source
    assert source_filter({"excludes": ["nowhere"]}).apply(source) == source
    assert source_filter("nowhere").apply(source) == {}
    assert source_filter({"excludes": ["*"]}).apply(source) == {}
    assert "a" not in source_filter({"excludes": "a"}).apply(source)
