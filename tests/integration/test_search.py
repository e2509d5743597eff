"""The search call on three engines: the same bodies, the same answers."""

import asyncio
import random

import opensearchpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opensearchpy import Search

from osrerank import Client, connect
from osrerank.testing import FunctionScorer
from tests.blocking import Blocking
from tests.rankings import ids

pytestmark = pytest.mark.integration

WORDS = (
    "blood pressure heart rate salt diet low high cause effect sleep stress water coffee exercise".split()  # noqa: SIM905 - thirteen words in a row read better
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


@pytest.fixture(scope="module", params=["Client", "AsyncClient"])
def client(engine_url, request):
    if request.param == "Client":
        client = connect(engine_url, scorer=SCORER)
        yield filled(client)
        client.indices.delete(index=INDEX)
        client.close()
        return
    from osrerank.aio import connect_async

    with asyncio.Runner() as runner:
        client = Blocking(runner.run(connected(connect_async, engine_url)), runner)
        yield filled(client)
        client.indices.delete(index=INDEX)
        client.close()


async def connected(connect_async, url):
    return connect_async(url, scorer=SCORER)


def filled(client):
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    client.indices.create(index=INDEX, body=MAPPING)
    rng = random.Random(7)
    lines = []
    for index in range(COUNT):
        lines += [{"index": {"_index": INDEX, "_id": f"d{index}"}}, document(index, rng)]
    assert not client.bulk(body=lines, refresh=True)["errors"]
    return client


def plain_search(client, **arguments):
    """What opensearch-py's own client answers."""
    return client.search(rerank=False, **arguments)


def stripped(hit):
    return {name: value for name, value in hit.items() if name not in ("_score", "_rerank")}


def test_a_reranked_response_has_the_form_of_an_ordinary_response(client):
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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.integers(1, 70),
    st.integers(1, 20),
    st.sampled_from([None, "a", "b"]),
)
def test_drawn_bodies_and_pages_keep_every_hit(client, words, depth, size, kind):
    query = {"bool": {"must": {"match": {"text": " ".join(words)}}}}
    if kind:
        query["bool"]["filter"] = [{"term": {"kind": kind}}]
    body = {"query": query, "aggs": {"kinds": {"terms": {"field": "kind"}}}}
    plain = plain_search(client, index=INDEX, body={**body, "size": COUNT})
    response = client.search(index=INDEX, body={**body, "size": COUNT}, rerank={"depth": depth})
    assert response["aggregations"] == plain["aggregations"]
    assert response["hits"]["total"] == plain["hits"]["total"]
    assert sorted(map(str, map(stripped, response["hits"]["hits"]))) == sorted(
        map(str, map(stripped, plain["hits"]["hits"]))
    )
    pages = []
    for offset in range(0, len(plain["hits"]["hits"]) + 1, size):
        page = client.search(index=INDEX, body=body, size=size, from_=offset, rerank={"depth": depth})
        assert page["hits"]["total"] == plain["hits"]["total"]
        pages += page["hits"]["hits"]
    assert pages == response["hits"]["hits"]


def test_opensearch_dsl_searches_rerank(client):
    if not isinstance(client, Client):
        pytest.skip("opensearch-py's Search takes the synchronous client")
    search = Search(using=client, index=INDEX).query("match", text="low blood pressure")
    plain, response = search.execute(), search.params(rerank=True).execute()
    assert [hit.meta.id for hit in response] == ids(client.search("low blood pressure", index=INDEX, rerank=True))
    assert [hit.meta.id for hit in plain] != [hit.meta.id for hit in response]
    assert response.rerank.applied is True


def test_msearch_reranks_each_search(client):
    body = [{"index": INDEX}, {"query": {"match": {"text": "low blood"}}}, {}, {"query": {"match": {"text": "salt"}}}]
    answer = client.msearch(body=body, index=INDEX, rerank=True)
    for response, text in zip(answer["responses"], ("low blood", "salt"), strict=True):
        alone = client.search({"match": {"text": text}}, index=INDEX, rerank=True)
        assert ids(response) == ids(alone)
        assert response["rerank"]["applied"] is True


def test_msearch_keeps_the_errors_of_its_searches(client):
    body = [
        {"index": "no-such-index"},
        {"query": {"match": {"text": "low"}}},
        {"index": INDEX},
        {"query": {"match": {"text": "low"}}},
    ]
    first, second = client.msearch(body=body, rerank=True)["responses"]
    assert first["error"]["type"] == "index_not_found_exception"
    assert second["rerank"]["applied"] is True


@pytest.mark.parametrize(
    "query", [{"match": "low"}, {"unheard_of": {"text": "low"}}, {"match": {"text": {"query": "low", "fuzzy": 1}}}]
)
def test_a_bad_query_brings_the_engines_own_error_once(client: Client, query: dict[str, object]) -> None:
    with pytest.raises(opensearchpy.RequestError) as plain:
        client.search(index=INDEX, body={"query": query})
    with pytest.raises(opensearchpy.RequestError) as reranked:
        client.search(index=INDEX, body={"query": query}, rerank=True)
    assert reranked.value.args[:2] == plain.value.args[:2]
    chain = [error for error in (reranked.value.__cause__, reranked.value.__context__) if error is not None]
    assert not [error for error in chain if isinstance(error, opensearchpy.RequestError)]
