"""The search call on both engines: the same bodies, the same answers."""

import random

import opensearchpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opensearchpy import Search

from osrerank import Client, connect
from osrerank.testing import FunctionScorer

pytestmark = pytest.mark.integration

WORDS = (
    "blood pressure heart rate salt diet low high cause effect sleep stress water coffee exercise".split()  # noqa: SIM905
)
SCORER = FunctionScorer(lambda query, text: len(set(query.split()) & set(text.split())) - len(text) / 100)
INDEX = "reranked"
COUNT = 60
MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            "title": {"type": "text", "analyzer": "english"},
            "text": {"type": "text", "analyzer": "english"},
            "kind": {"type": "keyword"},
            "year": {"type": "integer"},
        }
    },
}


def document(place, rng):
    return {
        "title": f"note {place}",
        "text": " ".join(rng.choices(WORDS, k=rng.randint(3, 12))),
        "kind": rng.choice(["a", "b", "c"]),
        "year": 1990 + place,
    }


@pytest.fixture(scope="module")
def client(engine_url):
    client = connect(engine_url, scorer=SCORER)
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    client.indices.create(index=INDEX, body=MAPPING)
    rng = random.Random(7)
    lines = []
    for place in range(COUNT):
        lines += [{"index": {"_index": INDEX, "_id": f"d{place}"}}, document(place, rng)]
    assert not client.bulk(body=lines, refresh=True)["errors"]
    yield client
    client.indices.delete(index=INDEX)
    client.close()


def ids(response):
    return [hit["_id"] for hit in response["hits"]["hits"]]


def stripped(hit):
    return {name: value for name, value in hit.items() if name not in ("_score", "_rerank")}


def test_reranked_response_is_an_ordinary_one(client):
    assert isinstance(client, Client)
    plain = client.search("low blood pressure", index=INDEX, size=COUNT)
    response = client.search("low blood pressure", index=INDEX, size=COUNT, rerank=True)
    assert sorted(ids(response)) == sorted(ids(plain))
    assert ids(response) != ids(plain)
    assert response["hits"]["total"] == plain["hits"]["total"]
    by_id = {hit["_id"]: hit for hit in plain["hits"]["hits"]}
    for hit in response["hits"]["hits"]:
        assert stripped(hit) == stripped(by_id[hit["_id"]])
        assert hit["_rerank"]["first_pass"]["score"] == by_id[hit["_id"]]["_score"]
    scores = [hit["_score"] for hit in response["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    stage = response["rerank"]["stages"][0]
    assert (response["rerank"]["applied"], stage["candidates"], stage["inferences"]) == (True, len(scores), len(scores))


def test_first_pass_scores_are_as_without_us(client):
    body = {"query": {"match": {"text": "low blood pressure"}}}
    plain = client.search(index=INDEX, body=body, size=5)
    again = opensearchpy.OpenSearch.search(client, index=INDEX, body=body, size=5)
    assert plain["hits"] == again["hits"]


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"match": {"text": "low blood"}}},
        {"query": {"bool": {"must": {"match": {"text": "low blood"}}, "filter": {"term": {"kind": "a"}}}}},
        {"query": {"multi_match": {"query": "low blood", "fields": ["title^2", "text"]}}},
        {"query": {"match": {"text": "low blood"}}, "aggs": {"kinds": {"terms": {"field": "kind"}}}},
        {"query": {"match": {"text": "low blood"}}, "highlight": {"fields": {"text": {}}}},
        {"query": {"match": {"text": "low blood"}}, "_source": False},
        {"query": {"match": {"text": "low blood"}}, "_source": ["kind"]},
        {"query": {"match": {"text": "low blood"}}, "_source": {"excludes": ["text"]}},
        {"query": {"match": {"text": "low blood"}}, "_source": ["kind"], "fields": ["year"]},
        {"query": {"match": {"text": "low blood"}}, "track_total_hits": False},
        {"query": {"match": {"text": "low blood"}}, "track_total_hits": 5},
        {"query": {"match": {"text": "low blood"}}, "sort": ["_score", {"year": "desc"}]},
        {"query": {"match": {"text": "low blood"}}, "min_score": 0.1},
        {"query": {"match": {"text": "low blood"}}, "post_filter": {"term": {"kind": "b"}}},
    ],
)
def test_all_but_order_and_marks_is_the_plain_searchs(client, body):
    plain = opensearchpy.OpenSearch.search(client, index=INDEX, body={**body, "size": COUNT})
    response = client.search(index=INDEX, body={**body, "size": COUNT}, rerank={"query": "low blood"})
    assert response["rerank"]["applied"] is True
    assert response.get("aggregations") == plain.get("aggregations")
    assert response["hits"].get("total") == plain["hits"].get("total")
    by_id = {hit["_id"]: stripped(hit) for hit in plain["hits"]["hits"]}
    assert {hit["_id"]: stripped(hit) for hit in response["hits"]["hits"]} == by_id


def test_pages_join(client):
    whole = ids(client.search("low blood pressure", index=INDEX, size=COUNT, rerank={"depth": 20}))
    paged = []
    for offset in range(0, COUNT, 7):
        paged += ids(client.search("low blood pressure", index=INDEX, size=7, from_=offset, rerank={"depth": 20}))
    assert paged == whole


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.integers(1, 70),
    st.integers(1, 20),
    st.sampled_from([None, "a", "b"]),
)
def test_random_bodies_and_pages(client, words, depth, size, kind):
    query = {"bool": {"must": {"match": {"text": " ".join(words)}}}}
    if kind:
        query["bool"]["filter"] = [{"term": {"kind": kind}}]
    body = {"query": query, "aggs": {"kinds": {"terms": {"field": "kind"}}}}
    plain = opensearchpy.OpenSearch.search(client, index=INDEX, body={**body, "size": COUNT})
    whole = client.search(index=INDEX, body={**body, "size": COUNT}, rerank={"depth": depth})
    assert whole["aggregations"] == plain["aggregations"]
    assert whole["hits"]["total"] == plain["hits"]["total"]
    assert sorted(map(str, map(stripped, whole["hits"]["hits"]))) == sorted(
        map(str, map(stripped, plain["hits"]["hits"]))
    )
    pages = []
    for offset in range(0, len(plain["hits"]["hits"]) + 1, size):
        page = client.search(index=INDEX, body=body, size=size, from_=offset, rerank={"depth": depth})
        assert page["hits"]["total"] == plain["hits"]["total"]
        pages += page["hits"]["hits"]
    assert pages == whole["hits"]["hits"]


def test_dsl(client):
    search = Search(using=client, index=INDEX).query("match", text="low blood pressure")
    plain, response = search.execute(), search.params(rerank=True).execute()
    assert [hit.meta.id for hit in response] == ids(client.search("low blood pressure", index=INDEX, rerank=True))
    assert [hit.meta.id for hit in plain] != [hit.meta.id for hit in response]
    assert response.rerank.applied is True


def test_msearch(client):
    body = [{"index": INDEX}, {"query": {"match": {"text": "low blood"}}}, {}, {"query": {"match": {"text": "salt"}}}]
    answer = client.msearch(body=body, index=INDEX, rerank=True)
    for response, text in zip(answer["responses"], ("low blood", "salt"), strict=True):
        alone = client.search({"match": {"text": text}}, index=INDEX, rerank=True)
        assert ids(response) == ids(alone)
        assert response["rerank"]["applied"] is True


def test_msearch_keeps_errors(client):
    body = [
        {"index": "no-such-index"},
        {"query": {"match": {"text": "low"}}},
        {"index": INDEX},
        {"query": {"match": {"text": "low"}}},
    ]
    first, second = client.msearch(body=body, rerank=True)["responses"]
    assert first["error"]["type"] == "index_not_found_exception"
    assert second["rerank"]["applied"] is True


def test_unknown_index(client):
    with pytest.raises(opensearchpy.NotFoundError):
        client.search("low blood", index="no-such-index", rerank=True)


def test_missing_text_field_says_what_there_is(client):
    response = client.search("low blood", index=INDEX, rerank={"fields": ["body"]})
    assert response["rerank"]["applied"] is False
    assert "kind, text, title, year" in response["rerank"]["reason"]


def test_empty_query(client):
    response = client.search("  ", index=INDEX, rerank=True)
    assert response["rerank"]["applied"] is False
    assert response["hits"]["hits"] == []


def test_no_hits(client):
    assert client.search("zzzz", index=INDEX, rerank=True)["rerank"]["reason"] == "there are no hits"


def test_size_zero_keeps_aggregations(client):
    body = {"query": {"match": {"text": "low"}}, "size": 0, "aggs": {"kinds": {"terms": {"field": "kind"}}}}
    response = client.search(index=INDEX, body=body, rerank=True)
    assert response["rerank"]["applied"] is False
    assert response["aggregations"]["kinds"]["buckets"]


def test_invalid_request_is_opensearchs_error(client):
    with pytest.raises(opensearchpy.RequestError):
        client.search(index=INDEX, body={"query": {"no_such_clause": {}}}, rerank={"query": "x"})
    with pytest.raises(opensearchpy.RequestError):
        client.search("low", index=INDEX, size=-1, rerank=True)


def test_unreachable_server():
    client = connect("http://127.0.0.1:9", scorer=SCORER, max_retries=0)
    with pytest.raises(opensearchpy.ConnectionError):
        client.search("low", index="x", rerank=True)


async def _search_async(url):
    from osrerank.aio import connect_async

    client = connect_async(url, scorer=SCORER)
    try:
        one = await client.search("low blood pressure", index=INDEX, size=20, rerank={"depth": 30})
        body = [{"index": INDEX}, {"query": {"match": {"text": "low blood"}}}]
        many = await client.msearch(body=body, rerank=True)
        texts = await client.rerank("low blood", ["salt", "low blood"])
        again = await client.rerank_response(one, "low blood pressure")
        return one, many, texts, again
    finally:
        await client.close()


def test_async_client_answers_the_same(client, engine_url):
    import asyncio

    one, many, texts, again = asyncio.run(_search_async(engine_url))
    expected = client.search("low blood pressure", index=INDEX, size=20, rerank={"depth": 30})
    assert one["hits"] == expected["hits"]
    expected = client.search({"match": {"text": "low blood"}}, index=INDEX, rerank=True)
    assert many["responses"][0]["hits"] == expected["hits"]
    assert [candidate.doc_id for candidate in texts.candidates] == ["1", "0"]
    assert again["rerank"]["applied"] is True
