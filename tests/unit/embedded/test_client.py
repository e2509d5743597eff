import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from opensearchpy import OpenSearch, RequestError
from opensearchpy.exceptions import OpenSearchWarning

from tests.waiting import wait_until

Opener = Callable[..., OpenSearch]


def test_data_outlives_its_client_and_clients_of_a_process_share_it(engine: OpenSearch, open_engine: Opener) -> None:
    engine.index(index="a", id="1", body={"text": "never refreshed"})
    engine.close()
    again = open_engine()
    assert again.search(index="a", body={"query": {"match": {"text": "refreshed"}}})["hits"]["total"]["value"] == 1
    first, second = open_engine(), open_engine()
    first.index(index="a", id="1", body={"text": "x"}, refresh=True)
    second.index(index="a", id="2", body={"text": "x"}, refresh=True)
    first.close()
    assert second.count(index="a")["count"] == 2


def test_whoever_changes_an_answer_changes_nothing_else(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "x", "tags": ["b"]}, refresh=True)
    terms = {"by": {"terms": {"field": "tags.keyword"}}}
    asked = {"query": {"match": {"text": "x"}}, "fields": ["tags"], "aggs": terms}
    first = engine.search(index="a", body=asked)
    first["hits"]["hits"][0]["_source"]["tags"].append("c")
    first["aggregations"]["by"]["buckets"].clear()
    second = engine.search(index="a", body=asked)
    assert second["hits"]["hits"][0]["_source"] == {"text": "x", "tags": ["b"]}
    assert second["aggregations"]["by"]["buckets"] == [{"key": "b", "doc_count": 1}]


@pytest.mark.long
def test_writes_become_visible_by_themselves(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "x"})
    wait_until(lambda: engine.count(index="a")["count"] == 1)


@pytest.mark.long
def test_threads_search_while_one_indexes(engine: OpenSearch) -> None:
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
            ids = [f"{batch % 3}-{one}" for one in range(25)]
            lines = [line for one in ids for line in ({"index": {"_id": one}}, {"text": f"word {batch}"})]
            engine.bulk(index="a", body=lines, refresh=batch % 4 == 0)
            if batch == 10:
                engine.index(index="a", body={"new_field": "word"}, refresh=True)
        stop.set()
        assert not any(one.exception(60) for one in searching)
    engine.indices.refresh(index="a")
    assert engine.count(index="a")["count"] == 77


def test_other_bm25_constants_are_answered_with_a_warning(engine: OpenSearch) -> None:
    similarity = {"default": {"type": "BM25", "k1": 0.9, "b": 0.4}}
    with pytest.warns(OpenSearchWarning, match=r"k1=1.2, b=0.75"):
        engine.indices.create(index="a", body={"settings": {"index": {"similarity": similarity}}})
    similarity["default"].update(k1=1.2, b=0.75)
    engine.indices.create(index="b", body={"settings": {"similarity": similarity}})


UNSUPPORTED = {
    "query_string": {"query": {"query_string": {"query": "a"}}},
    "function_score": {"query": {"function_score": {}}},
    "knn": {"query": {"knn": {"n": {"vector": [1], "k": 1}}}},
    "fuzziness": {"query": {"match": {"text": {"query": "a", "fuzziness": "AUTO"}}}},
    "slop": {"query": {"match_phrase": {"text": {"query": "a b", "slop": 2}}}},
    "cross_fields": {"query": {"multi_match": {"query": "a", "fields": ["text"], "type": "cross_fields"}}},
    "case_insensitive": {"query": {"term": {"text": {"value": "a", "case_insensitive": True}}}},
    "rescore": {"rescore": {}},
    "suggest": {"suggest": {}},
    "collapse": {"collapse": {"field": "text"}},
    "script_fields": {"script_fields": {}},
    "explain": {"explain": True},
    "avg": {"aggs": {"x": {"avg": {"field": "n"}}}},
    "sub-aggregations": {"aggs": {"x": {"terms": {"field": "n"}, "aggs": {"y": {"terms": {"field": "n"}}}}}},
    "fvh": {"query": {"match_all": {}}, "highlight": {"fields": {"text": {"type": "fvh"}}}},
    "mode": {"sort": [{"n": {"order": "asc", "mode": "avg"}}]},
    "_script": {"sort": [{"_script": {}}]},
    "now-1d": {"query": {"range": {"seen": {"gte": "now-1d"}}}},
}


@pytest.fixture
def small(engine: OpenSearch) -> OpenSearch:
    engine.index(index="a", id="1", body={"text": "a b", "n": 1, "seen": "2020-01-01"}, refresh=True)
    return engine


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_clauses_are_named(small: OpenSearch, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        small.search(index="a", body=UNSUPPORTED[name])
    assert name in caught.value.info["error"]["reason"]
    assert "embedded engine" in caught.value.info["error"]["reason"]


@pytest.mark.parametrize("params", [{"q": "a"}, {"scroll": "1m"}, {"search_pipeline": "mine"}, {"routing": "x"}])
def test_unsupported_parameters_are_named(small: OpenSearch, params: dict[str, str]) -> None:
    with pytest.raises(RequestError) as caught:
        small.search(index="a", body={}, **params)
    ((name, value),) = params.items()
    assert {name, value} & set(caught.value.info["error"]["reason"].replace("[", " ").replace("]", " ").split())


@pytest.mark.parametrize(
    "mapping",
    [{"type": "nested"}, {"type": "knn_vector"}, {"type": "text", "copy_to": "b"}, {"type": "date", "format": "MM/yy"}],
)
def test_unsupported_mappings_are_named(engine: OpenSearch, mapping: dict[str, str]) -> None:
    with pytest.raises(RequestError) as caught:
        engine.indices.create(index="x", body={"mappings": {"properties": {"field": mapping}}})
    assert "field" in caught.value.info["error"]["reason"]
    assert not engine.indices.exists(index="x")


def test_what_plugins_read_in_ext_has_no_effect_and_the_rest_is_refused(small: OpenSearch) -> None:
    ext = {"rerank": {"query_context": {"query_text": "x"}}, "ubi": {"query_id": "q"}}
    assert small.search(index="a", body={"ext": ext})["hits"]["total"]["value"] == 1
    with pytest.raises(RequestError, match=r"\[ext\] other than"):
        small.search(index="a", body={"ext": {"other": 1}})


def test_unsupported_requests_are_named(small: OpenSearch) -> None:
    with pytest.raises(RequestError, match="_delete_by_query"):
        small.delete_by_query(index="a", body={"query": {"match_all": {}}})
    assert small.search(index="a", body={}, search_pipeline="_none")["hits"]["total"]["value"] == 1
