"""Searches that are sorted by a field: the embedded engine gives OpenSearch's order and sort values."""

from typing import Any

import pytest
from opensearchpy import OpenSearch

from tests.integration.conftest import Engines

pytestmark = pytest.mark.integration
MAPPING = {
    "n": {"type": "integer"}, "x": {"type": "float"}, "d": {"type": "date"}, "k": {"type": "keyword"},
    "ok": {"type": "boolean"}, "text": {"type": "text"},
}  # fmt: skip
DOCUMENTS: list[dict[str, Any]] = [
    {"n": 3, "x": 0.5, "d": "2024-03-05", "k": "beta", "text": "salt water"},
    {"n": [9, 1], "x": [2.5, -1], "k": ["alpha", "zeta"], "text": "salt"},
    {"text": "salt and pepper"},
    {"n": 3, "x": 7, "d": ["2020-01-01", "2026-01-01"], "k": "gamma", "text": "salt"},
    {"n": -4, "x": 0.25, "d": "2023-01-01T10:00:00Z", "k": "Beta", "text": "pepper"},
]


@pytest.mark.parametrize("name", ["n", "x", "d", "k"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_hits_are_in_opensearchs_order(engines: Engines, name: str, order: str) -> None:
    found: list[Any] = []
    for engine in engines:
        fill(engine)
        for query in ({"exists": {"field": name}}, {"bool": {"filter": [{"exists": {"field": name}}]}}):
            for sort in ([{name: {"order": order}}], {name: order}):
                body = {"query": query, "sort": sort, "size": 3, "from": 1}
                hits = engine.search(index="sorted", body=body)["hits"]
                shown = [(hit["_id"], hit["_score"], hit["sort"]) for hit in hits["hits"]]
                found.append((shown, hits["max_score"], hits["total"]))
    half = len(found) // 2
    assert found[half:] == found[:half]


def test_documents_without_a_value_come_last(engines: Engines) -> None:
    found: list[Any] = []
    for engine in engines:
        fill(engine)
        for name in ("n", "x", "d", "k", "ok"):
            for order in ("asc", "desc"):
                hits = engine.search(index="sorted", body={"sort": [{name: order}]})["hits"]["hits"]
                found.append([(hit["_id"], hit["sort"]) for hit in hits])
    half = len(found) // 2
    assert found[half:] == found[:half]


def fill(engine: OpenSearch) -> None:
    engine.indices.delete(index="sorted", ignore_unavailable=True)
    engine.indices.create(index="sorted", body={"mappings": {"properties": MAPPING}})
    lines = [
        line
        for index, document in enumerate(DOCUMENTS)
        for line in ({"index": {"_index": "sorted", "_id": str(index)}}, document)
    ]
    engine.bulk(body=lines, refresh=True)
