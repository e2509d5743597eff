"""Text fields of a mapping."""

from osrerank.retrieval.text_fields import text_fields


def test_text_fields_of_objects_have_dots() -> None:
    properties = {"a": {"properties": {"b": {"type": "text"}, "c": {"type": "keyword"}}}, "d": {"type": "text"}}
    assert list(text_fields(properties)) == ["a.b", "d"]
