"""Mappings of the embedded engine: the values of a document's fields."""

import pytest

from osrerank.embedded.errors import ApiError
from osrerank.embedded.mapping.fields import IndexFields, merge_mappings


def test_a_mapping_extracts_the_values_of_a_document() -> None:
    properties = {
        "title": {"type": "text", "fields": {"raw": {"type": "keyword", "ignore_above": 5}}},
        "made": {"properties": {"year": {"type": "integer"}}},
        "hidden": {"type": "object", "enabled": False},
        "stored": {"type": "keyword", "index": False, "doc_values": False},
    }
    fields = IndexFields({"properties": properties})
    documents = [{"year": "1999"}, {"year": 2000.0}]
    source = {"title": ["short", "too long"], "made": documents, "hidden": {"a": 1}, "stored": "x"}
    assert fields.extract(source) == {"title": ["short", "too long"], "title.raw": ["short"], "made.year": [1999, 2000]}
    assert fields.guess_mappings(source) == {}
    assert fields.guess_mappings({"new": {"a": 1}}) == {"properties": {"new": {"properties": {"a": {"type": "long"}}}}}
    for clash in ({"title": {"inner": 1}}, {"made": 3}, {"made": {"year": "x"}}):
        with pytest.raises(ApiError) as caught:
            assert fields.guess_mappings(clash) or fields.extract(clash)
        assert caught.value.kind == "mapper_parsing_exception"


def test_dotted_names_become_objects_and_fixed_parameters_stay() -> None:
    old = merge_mappings(
        {}, {"properties": {"made.year": {"type": "integer"}, "title": {"type": "text", "analyzer": "english"}}}
    )
    assert old["properties"]["made"] == {"properties": {"year": {"type": "integer"}}}
    merged = merge_mappings(old, {"properties": {"made": {"properties": {"place": {"type": "keyword"}}}}})
    assert set(IndexFields(merged).by_path) == {"made.year", "made.place", "title"}
    for change in ({"title": {"type": "text"}}, {"made": {"type": "keyword"}}, {"made.year": {"type": "long"}}):
        with pytest.raises(ApiError, match=r"update parameter|can't merge|cannot be changed"):
            merge_mappings(old, {"properties": change})
