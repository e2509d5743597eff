"""Source filters of the embedded engine."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from osrerank.embedded.mapping.source import read_source_filter

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
def test_source_filters_keep_or_drop_all(source: dict[str, Any]) -> None:
    assert read_source_filter("*").apply(source) == source
    assert read_source_filter({"excludes": ["nowhere"]}).apply(source) == source
    assert read_source_filter("nowhere").apply(source) == {}
    assert read_source_filter({"excludes": ["*"]}).apply(source) == {}
    assert "a" not in read_source_filter({"excludes": "a"}).apply(source)
