import pytest

from osrerank.embedded.errors import Fault
from osrerank.embedded.mapping.fields import IndexFields


def test_values_of_a_document() -> None:
    properties = {
        "title": {"type": "text", "fields": {"raw": {"type": "keyword", "ignore_above": 5}}},
        "made": {"properties": {"year": {"type": "integer"}}},
        "hidden": {"type": "object", "enabled": False},
        "stored": {"type": "keyword", "index": False},
    }
    fields = IndexFields({"properties": properties})
    made = [{"year": "1999"}, {"year": 2000.0}]
    source = {"title": ["short", "too long"], "made": made, "hidden": {"a": 1}, "stored": "x"}
    assert fields.extract(source) == {"title": ["short", "too long"], "title.raw": ["short"], "made.year": [1999, 2000]}
    assert fields.additions(source) == {}
    assert fields.additions({"new": {"a": 1}}) == {"properties": {"new": {"properties": {"a": {"type": "long"}}}}}
    for clash in ({"title": {"inner": 1}}, {"made": 3}, {"made": {"year": "x"}}):
        with pytest.raises(Fault) as caught:
            assert fields.additions(clash) or fields.extract(clash)
        assert caught.value.kind == "mapper_parsing_exception"
