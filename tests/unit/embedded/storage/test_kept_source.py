from typing import Any

import pytest
from opensearchpy import OpenSearch, RequestError

BODY: dict[str, Any] = {"mappings": {"_source": {"excludes": ["tag"]}}}


def test_an_update_drops_what_was_left_out_of_the_source_and_the_mapping_stays(engine: OpenSearch) -> None:
    engine.indices.create(index="a", body=BODY)
    engine.index(index="a", id="1", body={"text": "old", "tag": "x y", "in": {"n": 1}}, refresh=True)
    (hit,) = engine.search(index="a", body={})["hits"]["hits"]
    assert hit["_source"] == {"text": "old", "in": {"n": 1}} == engine.get(index="a", id="1")["_source"]
    having = {"query": {"exists": {"field": "tag"}}}
    assert engine.count(index="a", body=having)["count"] == 1
    engine.update(index="a", id="1", body={"doc": {"text": "new"}}, refresh=True)
    assert engine.count(index="a", body=having)["count"] == 0
    with pytest.raises(RequestError, match="_source"):
        engine.indices.put_mapping(index="a", body={"_source": {"excludes": ["other"]}})


def test_the_search_index_is_built_again_with_fields_that_are_not_shown(engine: OpenSearch) -> None:
    engine.indices.create(index="a", body=BODY)
    engine.index(index="a", id="1", body={"tag": "x y"}, refresh=True)
    engine.index(index="a", id="2", body={"later": 1.5}, refresh=True)  # a new column: all is built again
    hits = engine.search(index="a", body={"docvalue_fields": ["tag.keyword", {"field": "later"}]})["hits"]["hits"]
    assert [hit.get("fields") for hit in hits] == [{"tag.keyword": ["x y"]}, {"later": [1.5]}]
    assert "tag" not in hits[0]["_source"]
