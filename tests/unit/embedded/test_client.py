"""The client of the embedded engine: shared data, visibility of writes, threads, pages and highlights."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchWarning, RequestError

from tests.waiting import wait_until

Opener = Callable[..., OpenSearch]


def test_embedded_data_outlives_the_client_and_is_shared_by_clients_of_a_process(
    engine: OpenSearch, open_engine: Opener
) -> None:
    engine.index(index="a", id="1", body={"text": "never refreshed"})
    engine.close()
    again = open_engine()
    assert again.search(index="a", body={"query": {"match": {"text": "refreshed"}}})["hits"]["total"]["value"] == 1
    first, second = open_engine(), open_engine()
    first.index(index="a", id="1", body={"text": "x"}, refresh=True)
    second.index(index="a", id="2", body={"text": "x"}, refresh=True)
    first.close()
    assert second.count(index="a")["count"] == 2


def test_changing_a_returned_answer_changes_no_stored_document(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "x", "tags": ["b"]}, refresh=True)
    terms = {"by": {"terms": {"field": "tags.keyword"}}}
    body = {"query": {"match": {"text": "x"}}, "fields": ["tags"], "aggs": terms}
    first = engine.search(index="a", body=body)
    first["hits"]["hits"][0]["_source"]["tags"].append("c")
    first["aggregations"]["by"]["buckets"].clear()
    second = engine.search(index="a", body=body)
    assert second["hits"]["hits"][0]["_source"] == {"text": "x", "tags": ["b"]}
    assert second["aggregations"]["by"]["buckets"] == [{"key": "b", "doc_count": 1}]


@pytest.mark.long
def test_writes_become_visible_without_an_explicit_refresh(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "x"})
    wait_until(lambda: engine.count(index="a")["count"] == 1)


@pytest.mark.long
def test_threads_search_an_embedded_index_while_a_thread_indexes(engine: OpenSearch) -> None:
    engine.index(index="a", id="start", body={"text": "word start"}, refresh=True)
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            response = engine.search(index="a", body={"query": {"match": {"text": "word"}}, "size": 50})
            assert response["hits"]["total"]["value"] >= 1
            assert all("word" in hit["_source"]["text"] for hit in response["hits"]["hits"])

    with ThreadPoolExecutor(16) as pool, contextlib.ExitStack() as end:
        end.callback(stop.set)
        searching = [pool.submit(search) for _ in range(16)]
        for batch in range(20):
            ids = [f"{batch % 3}-{number}" for number in range(25)]
            lines = [line for doc_id in ids for line in ({"index": {"_id": doc_id}}, {"text": f"word {batch}"})]
            engine.bulk(index="a", body=lines, refresh=batch % 4 == 0)
            if batch == 10:
                engine.index(index="a", body={"new_field": "word"}, refresh=True)
        stop.set()
        assert not any(thread.exception(60) for thread in searching)
    engine.indices.refresh(index="a")
    assert engine.count(index="a")["count"] == 77


def test_other_bm25_constants_are_answered_with_a_warning(engine: OpenSearch) -> None:
    similarity = {"default": {"type": "BM25", "k1": 0.9, "b": 0.4}}
    with pytest.warns(OpenSearchWarning, match=r"k1=1.2, b=0.75"):
        engine.indices.create(index="a", body={"settings": {"index": {"similarity": similarity}}})
    similarity["default"].update(k1=1.2, b=0.75)
    engine.indices.create(index="b", body={"settings": {"similarity": similarity}})


def test_pages_of_equal_scores_follow_the_order_of_insertion(engine: OpenSearch) -> None:
    engine.bulk(
        index="a",
        body=[line for letter in "cab" for line in ({"index": {"_id": letter}}, {"text": letter})],
        refresh=True,
    )
    engine.index(index="a", id="c", body={"text": "again"}, refresh=True)
    for order, ids in (("asc", "abc"), ("desc", "cba")):
        page: dict[str, Any] = {"size": 2, "sort": [{"_doc": order}]}
        first = engine.search(index="a", body=page)["hits"]
        rest_of_hits = engine.search(index="a", body={**page, "search_after": first["hits"][-1]["sort"]})["hits"]
        assert [hit["_id"] for hit in first["hits"] + rest_of_hits["hits"]] == list(ids)
        assert first["total"] == rest_of_hits["total"] == {"value": 3, "relation": "eq"}


def test_highlights_mark_the_words_that_the_query_matched(engine: OpenSearch) -> None:
    text = f"Salt lowers pressure. Nothing {'of that ' * 15}is said here. High pressure and salt."
    engine.index(index="a", id="1", body={"text": text, "tag": "salt"}, refresh=True)
    body = {"query": {"match": {"text": "salt pressure"}}, "highlight": {"fields": {"*": {}}}}
    (hit,) = engine.search(index="a", body=body)["hits"]["hits"]
    marked = ["<em>Salt</em> lowers <em>pressure</em>.", "High <em>pressure</em> and <em>salt</em>."]
    assert hit["highlight"]["text"] == marked
    assert set(hit["highlight"]) == {"text"}
    body["highlight"] = {"pre_tags": ["["], "post_tags": ["]"], "fields": {"text": {"number_of_fragments": 1}}}
    (hit,) = engine.search(index="a", body=body)["hits"]["hits"]
    assert hit["highlight"]["text"] == ["[Salt] lowers [pressure]."]


def test_hits_of_several_indices_are_the_best_of_all(engine: OpenSearch) -> None:
    for name, texts in (("a", ["salt", "salt and pepper"]), ("b", ["salt salt", "none"])):
        lines = [line for text in texts for line in ({"index": {}}, {"text": text})]
        engine.bulk(index=name, body=lines, refresh=True)
    body = {"query": {"match": {"text": "salt"}}, "aggs": {"by": {"terms": {"field": "text.keyword", "size": 1}}}}
    response = engine.search(index="a,b", body=body)
    scores = [hit["_score"] for hit in response["hits"]["hits"]]
    assert (len(scores), scores) == (3, sorted(scores, reverse=True))
    assert response["aggregations"]["by"]["buckets"] == [{"key": "salt", "doc_count": 1}]
    assert response["aggregations"]["by"]["sum_other_doc_count"] == 2


def test_an_empty_bool_scores_1_also_inside_another_clause(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "salt"}, refresh=True)
    outer: dict[str, Any]
    for outer in ({"must": [{"bool": {}}, {"bool": {"should": []}}]}, {"should": [{"bool": {}}, {"match_all": {}}]}):
        (hit,) = engine.search(index="a", body={"query": {"bool": outer}})["hits"]["hits"]
        assert hit["_score"] == 2
    body = {"query": {"bool": {}}, "post_filter": {"match": {"text": "salt"}}}
    assert engine.search(index="a", body=body)["hits"]["max_score"] == 1


def test_exists_takes_a_pattern_of_fields(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "salt", "meta": {"year": 2024}})
    engine.index(index="a", id="2", body={"text": "salt"}, refresh=True)
    for pattern, n_documents in (("me*", 1), ("*.year", 1), ("tex*", 2), ("none*", 0), ("meta", 1)):
        found = engine.search(index="a", body={"query": {"exists": {"field": pattern}}})
        assert found["hits"]["total"]["value"] == n_documents
    with pytest.raises(RequestError, match=r"does not support \[\*\] in \[exists\]"):
        engine.search(index="a", body={"query": {"exists": {"field": "*"}}})


def test_aggregations_count_only_documents_with_the_least_score(engine: OpenSearch) -> None:
    for number, text in enumerate(("salt", "salt and much pepper and more pepper", "sugar")):
        engine.index(index="a", id=str(number), body={"text": text, "n": number}, refresh=True)
    aggregations = {"by": {"terms": {"field": "n"}}}
    body: dict[str, Any] = {"query": {"match": {"text": "salt"}}, "aggs": aggregations}
    best, worst = engine.search(index="a", body=body)["hits"]["hits"]
    body.update(min_score=(best["_score"] + worst["_score"]) / 2, post_filter={"term": {"n": 2}})
    response = engine.search(index="a", body=body)
    assert response["aggregations"]["by"]["buckets"] == [{"key": 0, "doc_count": 1}]
    assert response["hits"]["total"]["value"] == 0


@pytest.mark.parametrize(
    ("kind", "value", "last"),
    [
        ("long", 1, [2**63 - 1, -(2**63)]),
        ("integer", 1, [2**31 - 1, -(2**31)]),
        ("boolean", True, [2**31 - 1, -(2**31)]),
        ("date", "2024", [2**63 - 1, -(2**63)]),
        ("float", 1.5, ["Infinity", "-Infinity"]),
        ("keyword", "a", [None, None]),
    ],
)
def test_a_document_without_a_value_is_sorted_by_the_last_one(
    engine: OpenSearch, kind: str, value: Any, last: list[Any]
) -> None:
    engine.indices.create(index="a", body={"mappings": {"properties": {"field": {"type": kind}}}})
    engine.index(index="a", id="1", body={"other": 1})
    engine.index(index="a", id="2", body={"field": value}, refresh=True)
    for order, sort_value in zip(("asc", "desc"), last, strict=True):
        hits = engine.search(index="a", body={"sort": [{"field": order}]})["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == ["2", "1"]
        assert hits[1]["sort"] == [sort_value]
