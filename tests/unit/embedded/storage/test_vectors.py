"""Vectors in the engine: they are as durable as their documents, and only current ones are found."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch, RequestError

from osrerank import connect
from osrerank.embedded.storage import vectors as in_memory

METHOD = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}


def create(engine: OpenSearch, index: str = "a", *, excludes: Sequence[str] = (), **more: Any) -> None:
    field = {"type": "knn_vector", "dimension": 2, "method": METHOD, **more}
    mappings = {"_source": {"excludes": list(excludes)}, "properties": {"v": field, "in": {"properties": {"v": field}}}}
    engine.indices.create(index=index, body={"settings": {"index": {"knn": True}}, "mappings": mappings})


def write(engine: OpenSearch, **documents: Any) -> None:
    for doc_id, vector in documents.items():
        engine.index(index="a", id=doc_id, body={"text": f"{doc_id} words", "v": vector})
    engine.indices.refresh(index="a")


def nearest(engine: OpenSearch, field: str = "v", index: str = "a", **options: Any) -> list[str]:
    body = {"query": {"knn": {field: {"vector": [1, 0], "k": 10, **options}}}}
    return [hit["_id"] for hit in engine.search(index=index, body=body)["hits"]["hits"]]


@pytest.mark.parametrize("data_type", ["byte", "float"])
def test_vectors_outlive_the_client_and_follow_their_documents(
    open_engine: Callable[..., OpenSearch], data_type: str
) -> None:
    engine = open_engine()
    create(engine, data_type=data_type)
    write(engine, east=[1, 0], north=[0, 1], west=[-1, 0])
    assert nearest(engine) == ["east", "north", "west"]
    write(engine, east=[-1, 1], south=[1, -1])
    engine.delete(index="a", id="north", refresh=True)
    assert nearest(engine) == ["south", "east", "west"]
    engine.close()
    assert nearest(open_engine()) == ["south", "east", "west"]


def test_a_document_is_found_by_its_new_vector_after_the_refresh(engine: OpenSearch) -> None:
    create(engine)
    write(engine, east=[1, 0], north=[0, 1])
    engine.indices.put_settings(index="a", body={"index": {"refresh_interval": "-1"}})
    engine.index(index="a", id="north", body={"v": [2, 0.1]})
    engine.index(index="a", id="new", body={"v": [1, 0]})
    assert nearest(engine, k=1) == ["east"]
    assert "new" not in nearest(engine)
    engine.indices.refresh(index="a")
    assert nearest(engine) == ["east", "new", "north"]


def test_writes_of_one_bulk_request_leave_the_last_vector(engine: OpenSearch) -> None:
    create(engine)
    lines = [{"index": {"_id": "1"}}, {"v": [1, 0]}, {"index": {"_id": "1"}}, {"text": "none"}]
    lines += [{"index": {"_id": "2"}}, {"v": [0, 1]}, {"update": {"_id": "2"}}, {"doc": {"v": [1, 1]}}]
    assert not engine.bulk(index="a", body=lines, refresh=True)["errors"]
    assert nearest(engine) == ["2"]
    assert engine.get(index="a", id="2")["_source"] == {"v": [1.0, 1.0]}


def test_an_update_keeps_a_vector_in_the_source_and_drops_one_left_out_of_it(engine: OpenSearch) -> None:
    create(engine, excludes=["v"])
    engine.index(index="a", id="1", body={"text": "old", "v": [1, 0], "in": {"v": [1, 0], "n": 1}}, refresh=True)
    (hit,) = engine.search(index="a", body={})["hits"]["hits"]
    assert (
        hit["_source"] == {"text": "old", "in": {"n": 1, "v": [1.0, 0.0]}} == engine.get(index="a", id="1")["_source"]
    )
    engine.update(index="a", id="1", body={"doc": {"text": "new"}}, refresh=True)
    assert (nearest(engine), nearest(engine, "in.v")) == ([], ["1"])


def test_an_index_is_dropped_with_its_vectors(engine: OpenSearch) -> None:
    create(engine)
    write(engine, east=[1, 0])
    engine.indices.delete(index="a")
    create(engine)
    write(engine, north=[0, 1])
    assert nearest(engine) == ["north"]


def test_the_search_index_is_built_again_with_vectors_and_new_fields(engine: OpenSearch) -> None:
    create(engine, excludes=["v", "tag"])
    engine.index(index="a", id="1", body={"v": [1, 0], "tag": "x y"}, refresh=True)
    engine.index(index="a", id="2", body={"v": [1, 1], "later": 1.5}, refresh=True)  # a new column: all is built again
    assert nearest(engine) == ["1", "2"]
    assert engine.count(index="a", body={"query": {"exists": {"field": "v"}}})["count"] == 2
    hits = engine.search(index="a", body={"docvalue_fields": ["tag.keyword", {"field": "later"}]})["hits"]["hits"]
    assert [hit.get("fields") for hit in hits] == [{"tag.keyword": ["x y"]}, {"later": [1.5]}]
    assert "tag" not in hits[0]["_source"]


def test_several_indices_have_their_own_nearest(engine: OpenSearch) -> None:
    for index in ("a", "b"):
        create(engine, index)
        engine.index(index=index, id=f"in {index}", body={"v": [1, 0]}, refresh=True)
        engine.index(index=index, id=f"far in {index}", body={"v": [-1, 0]}, refresh=True)
    assert nearest(engine, index="a,b", k=1) == ["in a", "in b"]


def test_a_folder_that_cannot_be_written_is_searched(
    engine: OpenSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osrerank.embedded.storage import store

    create(engine)
    write(engine, east=[1, 0], north=[0, 1])
    engine.close()
    opened = store._connect
    monkeypatch.setattr(store, "_open", lambda folder: (opened(f"{(folder / store.FILE).as_uri()}?immutable=1"), True))
    client = connect(f"embedded:{tmp_path / 'engine'}")
    assert nearest(client) == ["east", "north"]
    client.close()


def test_more_vectors_than_can_be_compared_are_refused(engine: OpenSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    create(engine)
    write(engine, east=[1, 0], north=[0, 1])
    monkeypatch.setattr(in_memory, "MOST", 1)
    with pytest.raises(RequestError, match="at most 1 vectors"):
        nearest(engine)


def test_blocks_of_vectors_are_put_together(engine: OpenSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "BLOCK", 3)
    create(engine)
    write(engine, **{f"d{number:02d}": [20 - number, number] for number in range(20)})
    assert nearest(engine) == [f"d{number:02d}" for number in range(10)]
    odd = {"terms": {"_id": [f"d{number:02d}" for number in range(1, 20, 2)]}}
    assert nearest(engine, k=4, filter={"ids": {"values": odd["terms"]["_id"]}}) == ["d01", "d03", "d05", "d07"]
