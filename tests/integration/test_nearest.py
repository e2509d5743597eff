"""The ``knn`` query on both engines: the same hits and scores, the same refusals."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opensearchpy import OpenSearch, RequestError

from osrerank import connect

DIMENSION, DOCUMENTS = 4, 60
KINDS = [(space, data) for space in ("cosinesimil", "innerproduct", "l2") for data in ("byte", "float")]
WORDS = ("red", "green", "blue")


def body_of(space: str, data: str, **mappings: Any) -> dict[str, Any]:
    method = {"name": "hnsw", "engine": "lucene", "space_type": space}
    field = {"type": "knn_vector", "dimension": DIMENSION, "data_type": data, "method": method}
    properties = {"v": field, "text": {"type": "text"}, "v_of": {"type": "keyword"}}
    index = {"knn": True, "number_of_shards": 1, "number_of_replicas": 0}
    return {"settings": {"index": index}, "mappings": {"properties": properties, **mappings}}


@pytest.fixture(scope="module")
def engines(opensearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OpenSearch]]:
    """Both engines, with the same small collections; an index for each kind of vectors."""
    clients = [connect(opensearch_url), connect(f"embedded:{tmp_path_factory.mktemp('embedded')}")]
    names = [f"nearest-{space}-{data}" for space, data in KINDS]
    for client in clients:
        client.indices.delete(index=",".join(names), ignore_unavailable=True)
    random = np.random.default_rng(7)
    for (space, data), name in zip(KINDS, names, strict=True):
        vectors = random.integers(-120, 120, (DOCUMENTS, DIMENSION)) | 1  # none is zero
        lines: list[Any] = []
        for number, vector in enumerate(vectors.tolist()):
            lines += [{"index": {"_id": str(number)}}, {"text": WORDS[number % 3], "v": vector}]
        lines += [{"index": {"_id": "without"}}, {"text": "red"}]
        for client in clients:
            client.indices.create(index=name, body=body_of(space, data))
            assert not client.bulk(index=name, body=lines, refresh=True)["errors"]
    yield clients
    for client in clients:
        client.indices.delete(index=",".join(names), ignore_unavailable=True)
        client.close()


def scored(client: OpenSearch, index: str, query: dict[str, Any], size: int = 100) -> dict[str, float]:
    hits = client.search(index=index, body={"query": query, "size": size, "_source": False})["hits"]["hits"]
    return {hit["_id"]: hit["_score"] for hit in hits}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    vector=st.lists(st.integers(-128, 127), min_size=DIMENSION, max_size=DIMENSION).filter(any),
    k=st.integers(1, DOCUMENTS + 5),
    word=st.sampled_from([None, *WORDS]),
)
def test_both_engines_find_the_same(
    engines: list[OpenSearch], kind: tuple[str, str], vector: list[int], k: int, word: str | None
) -> None:
    """OpenSearch compares every vector here, by a script: its own search of so few is exact but need not be."""
    server, embedded = engines
    space, data = kind
    index = f"nearest-{space}-{data}"
    only = {"match": {"text": word}} if word else {"match_all": {}}
    having = {"bool": {"filter": [only, {"exists": {"field": "v"}}]}}
    params = {"field": "v", "query_value": vector, "space_type": space}
    script = {"source": "knn_score", "lang": "knn", "params": params}
    every = scored(server, index, {"script_score": {"query": having, "script": script}})
    if kind == ("cosinesimil", "byte"):  # the script's 1 + cos: other fields and the knn query have half of it
        every = {doc_id: score / 2 for doc_id, score in every.items()}
    ours = scored(embedded, index, {"knn": {"v": {"vector": vector, "k": k, **({"filter": only} if word else {})}}})
    assert len(ours) == min(k, len(every))
    np.testing.assert_allclose(list(ours.values()), sorted(every.values(), reverse=True)[:k], rtol=2e-6)
    for doc_id, score in ours.items():
        assert score == pytest.approx(every[doc_id], rel=2e-6)
    theirs = scored(server, index, {"knn": {"v": {"vector": vector, "k": k, **({"filter": only} if word else {})}}})
    np.testing.assert_allclose(list(theirs.values()), list(ours.values()), rtol=2e-6)


V = [3, 1, 0, -2]
CLAUSES: dict[str, Any] = {
    "should": {"bool": {"should": [{"match": {"text": "red"}}, {"knn": {"v": {"vector": V, "k": 5}}}]}},
    "must": {"bool": {"must": [{"match": {"text": "red"}}, {"knn": {"v": {"vector": V, "k": 20}}}]}},
    "filter": {"bool": {"must": [{"match": {"text": "red"}}], "filter": [{"knn": {"v": {"vector": V, "k": 20}}}]}},
    "must_not": {"bool": {"must": [{"match": {"text": "red"}}], "must_not": [{"knn": {"v": {"vector": V, "k": 20}}}]}},
    "boost": {"knn": {"v": {"vector": V, "k": 5, "boost": 2}}},
    "constant": {"constant_score": {"filter": {"knn": {"v": {"vector": V, "k": 3}}}}},
    "exists": {"exists": {"field": "v"}},
    "settings": {"knn": {"v": {"vector": V, "k": 3, "method_parameters": {"ef_search": 50}}}},
    "boolean": {"knn": {"v": {"vector": V, "k": 9, "filter": {"bool": {"must_not": [{"match": {"text": "red"}}]}}}}},
}


@pytest.mark.parametrize("name", CLAUSES)
def test_it_stands_where_other_queries_stand(engines: list[OpenSearch], name: str) -> None:
    theirs, ours = (scored(client, "nearest-cosinesimil-byte", CLAUSES[name]) for client in engines)
    assert ours == pytest.approx(theirs, rel=2e-6)
    totals = [
        client.count(index="nearest-cosinesimil-byte", body={"query": CLAUSES[name]})["count"] for client in engines
    ]
    assert totals[0] == totals[1] == len(ours)


REFUSED: dict[str, Any] = {
    "dimension": {"v": {"vector": [1, 0, 0], "k": 3}},
    "zero": {"v": {"vector": [0, 0, 0, 0], "k": 3}},
    "no k": {"v": {"vector": V}},
    "k is 0": {"v": {"vector": V, "k": 0}},
    "k is -1": {"v": {"vector": V, "k": -1}},
    "k is too large": {"v": {"vector": V, "k": 10_001}},
    "no vector": {"v": {"k": 3}},
    "empty": {"v": {"vector": [], "k": 3}},
    "text": {"v": {"vector": ["a", 1, 2, 3], "k": 3}},
    "unknown key": {"v": {"vector": V, "k": 3, "foo": 1}},
    "no byte": {"v": {"vector": [200, 0, 0, 0], "k": 3}},
    "fraction": {"v": {"vector": [1.5, 0, 0, 0], "k": 3}},
    "no field": {"nope": {"vector": V, "k": 3}},
    "text field": {"text": {"vector": V, "k": 3}},
    "two fields": {"v": {"vector": V, "k": 3}, "w": {"vector": V, "k": 3}},
}


def refusal(client: OpenSearch, run: Any) -> tuple[int, str, str]:
    with pytest.raises(RequestError) as caught:
        run(client)
    error = caught.value
    return int(error.status_code), error.error, error.info["error"]["root_cause"][0]["type"]


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse_the_same_queries(engines: list[OpenSearch], name: str) -> None:
    body = {"query": {"knn": REFUSED[name]}}
    theirs, ours = (refusal(one, lambda c: c.search(index="nearest-cosinesimil-byte", body=body)) for one in engines)
    assert ours == theirs


VECTORS = [
    [1, 0, 0],
    [1, 0, 0, 0, 0],
    ["x", 1, 2, 3],
    [0, 0, 0, 0],
    "text",
    [],
    {"a": 1},
    5,
    [1.5, 2, 3, 4],
    [200, 1, 1, 1],
]


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_both_refuse_the_same_documents(engines: list[OpenSearch], vector: Any) -> None:
    def write(client: OpenSearch) -> Any:
        return client.index(index="nearest-cosinesimil-byte", id="bad", body={"v": vector})

    theirs, ours = (refusal(client, write) for client in engines)
    assert ours == theirs == (400, "mapper_parsing_exception", "mapper_parsing_exception")


METHOD = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
MAPPINGS: list[dict[str, Any]] = [
    {"dimension": 0, "method": METHOD},
    {"dimension": 20_000, "method": METHOD},
    {"dimension": "a", "method": METHOD},
    {"method": METHOD},
    {"dimension": 4, "method": {**METHOD, "space_type": "foo"}},
    {"dimension": 4, "method": {**METHOD, "space_type": "l1"}},
    {"dimension": 4, "method": METHOD, "foo": 1},
    {"dimension": 4, "method": METHOD, "data_type": "foo"},
]


@pytest.mark.parametrize("mapping", MAPPINGS, ids=json.dumps)
def test_both_refuse_the_same_mappings(engines: list[OpenSearch], mapping: dict[str, Any]) -> None:
    properties = {"properties": {"z": {"type": "knn_vector", **mapping}}}
    put = [refusal(c, lambda c: c.indices.put_mapping(index="nearest-l2-byte", body=properties)) for c in engines]
    assert put[0] == put[1]
    whole = {"settings": {"index": {"knn": True}}, "mappings": properties}
    name = f"refused-{uuid.uuid4().hex[:8]}"
    created = [refusal(client, lambda c: c.indices.create(index=name, body=whole)) for client in engines]
    assert created[0] == created[1]


def test_a_field_keeps_its_mapping_and_needs_an_index_made_for_it(engine: OpenSearch, index_name: str) -> None:
    engine.indices.create(index=index_name, body=body_of("cosinesimil", "byte", _source={"excludes": ["v"]}))
    other = body_of("cosinesimil", "byte")["mappings"]["properties"]
    engine.indices.put_mapping(index=index_name, body={"properties": other})
    other["v"]["dimension"] = 5
    for changed in (
        {"properties": other},
        {"_source": {"excludes": ["w"]}},
        {"properties": {"v": {"type": "keyword"}}},
    ):
        kind = refusal(engine, lambda client, new=changed: client.indices.put_mapping(index=index_name, body=new))
        assert kind[:2] == (400, "illegal_argument_exception")
    engine.indices.delete(index=index_name)
    plain = body_of("cosinesimil", "byte")
    kind = refusal(engine, lambda client: client.indices.create(index=index_name, body={"mappings": plain["mappings"]}))
    assert kind[:2] == (400, "mapper_parsing_exception")
    engine.indices.create(index=index_name)
    kind = refusal(engine, lambda client: client.indices.put_settings(index=index_name, body={"index": {"knn": True}}))
    assert kind[:2] == (400, "illegal_argument_exception")


@pytest.mark.parametrize("is_excluded", [True, False])
def test_what_becomes_of_a_vector_when_its_text_changes(engine: OpenSearch, index_name: str, is_excluded: bool) -> None:
    excludes = {"_source": {"excludes": ["v", "v_of"]}} if is_excluded else {}
    engine.indices.create(index=index_name, body=body_of("cosinesimil", "byte", **excludes))
    for doc_id in ("whole", "part"):
        engine.index(index=index_name, id=doc_id, body={"text": "old", "v": V, "v_of": "digest"}, refresh=True)
    lines = [{"index": {"_id": "whole"}}, {"text": "new"}, {"update": {"_id": "part"}}, {"doc": {"text": "new"}}]
    assert not engine.bulk(index=index_name, body=lines, refresh=True)["errors"]
    body = {"query": {"knn": {"v": {"vector": V, "k": 5}}}, "docvalue_fields": ["v_of"]}
    hits = engine.search(index=index_name, body=body)["hits"]["hits"]
    assert [(hit["_id"], hit["fields"]) for hit in hits] == ([] if is_excluded else [("part", {"v_of": ["digest"]})])
    engine.update(index=index_name, id="part", body={"doc": {"v": [1, 1, 1, 1], "v_of": "newer"}}, refresh=True)
    (hit,) = engine.search(index=index_name, body=body)["hits"]["hits"]
    assert (hit["_id"], hit["fields"], "v" in hit["_source"]) == ("part", {"v_of": ["newer"]}, not is_excluded)
