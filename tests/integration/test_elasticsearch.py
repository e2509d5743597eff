"""Elasticsearch's own clients, wrapped: they remain what they are, and their searches rerank."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import (
    ApiError,
    AsyncElasticsearch,
    BadRequestError,
    Elasticsearch,
    NotFoundError,
    helpers,
)
from opensearchpy import OpenSearch

import osrerank
from osrerank.indexing.build import build_vectors
from osrerank.testing import FunctionScorer
from osrerank.types.engine import Engine
from tests.servers import ROOT, elasticsearch

INDEX = "elastic-notes"
BY_LENGTH = FunctionScorer(lambda _query, text: len(text))
MATCH = {"match": {"text": "blood"}}


@pytest.fixture(scope="module")
def plain_client(elasticsearch_url: str) -> Iterator[Elasticsearch]:
    with Elasticsearch(elasticsearch_url) as client:
        client.options(ignore_status=404).indices.delete(index=INDEX)
        client.indices.create(index=INDEX, mappings={"properties": {"text": {"type": "text"}}})
        actions = [{"_index": INDEX, "_id": str(n), "text": f"blood {'x' * n}", "n": n} for n in range(30)]
        helpers.bulk(client, actions, refresh=True)
        yield client
        client.indices.delete(index=INDEX)


@pytest.fixture(scope="module")
def client(plain_client: Elasticsearch) -> Iterator[Any]:
    wrapped = osrerank.wrap(plain_client, scorer=BY_LENGTH)
    yield wrapped
    wrapped.close()


def ids(response: Any) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


PAGE = {"size": 3, "from_": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": MATCH, **PAGE},
        {"query": "blood", **PAGE},
        {"body": {"query": MATCH, "size": 3, "from": 1}},
        {"body": '{"query": {"match": {"text": "blood"}}, "size": 3, "from": 1}'},
        {"query": MATCH, "source_includes": ["n"], **PAGE},
        {"retriever": {"standard": {"query": MATCH}}, **PAGE},
    ],
)
def test_every_form_of_a_search_is_reranked(client: Any, arguments: dict[str, Any]) -> None:
    response = client.search(index=INDEX, rerank=True, **arguments)
    assert (ids(response), response["rerank"]["applied"]) == (["28", "27", "26"], True)
    assert response.meta.status == 200
    assert response["hits"]["total"]["value"] == 30


def test_borrowed_fields_of_nested_objects_and_beside_top_hits_are_given_back(plain_client: Elasticsearch) -> None:
    name = "elastic-nested"
    plain_client.options(ignore_status=404).indices.delete(index=name)
    parts = {"type": "nested", "properties": {"text": {"type": "text"}, "n": {"type": "integer"}}}
    plain_client.indices.create(index=name, mappings={"properties": {"parts": parts, "text": {"type": "text"}}})
    for n in range(5):
        document = {"parts": [{"text": "blood " * (n + 1), "n": n}, {"n": 9}], "text": "blood"}
        plain_client.index(index=name, id=str(n), document=document, refresh=True)
    wrapped = osrerank.wrap(plain_client, scorer=BY_LENGTH, rerank={"fields": ["parts.text", "text"]})
    asked: list[dict[str, Any]] = [
        {"source": False},
        {"source": False, "fields": ["parts.n"]},
        {"source": False, "aggs": {"best": {"top_hits": {"size": 2}}}},
    ]
    for request in asked:
        same = {"index": name, "query": MATCH, **request}
        plain_response, ranked = plain_client.search(**same), wrapped.search(**same, rerank=True)
        assert ranked["rerank"]["applied"] is True
        assert {hit["_id"]: hit.get("fields") for hit in plain_response["hits"]["hits"]} == {
            hit["_id"]: hit.get("fields") for hit in ranked["hits"]["hits"]
        }
        assert plain_response.get("aggregations") == ranked.get("aggregations")
    wrapped.close()
    plain_client.indices.delete(index=name)


def test_without_rerank_the_wrapped_client_answers_as_elasticsearchs(client: Any, plain_client: Elasticsearch) -> None:
    assert isinstance(client, Elasticsearch)
    same = {"index": INDEX, "query": MATCH, "sort": ["n"]}
    assert ids(client.search(**same)) == ids(plain_client.search(**same))
    assert len(list(helpers.scan(client, index=INDEX))) == 30


def test_a_multi_search_reranks_each_and_keeps_errors_in_place(client: Any) -> None:
    searches = [{"index": INDEX}, {"query": MATCH, "size": 2}, {"index": "absent"}, {"query": MATCH}]
    found, absent = client.msearch(searches=searches, rerank=True)["responses"]
    assert (ids(found), absent["error"]["type"]) == (["29", "28"], "index_not_found_exception")


def test_a_multi_search_without_searches_is_refused_by_the_engine(client: Any) -> None:
    for method in (client.msearch, client.msearch_template):
        with pytest.raises(BadRequestError):
            method(**{"searches" if method == client.msearch else "search_templates": []}, rerank=True)


def test_errors_of_the_wrapped_client_are_elasticsearchs_own(client: Any) -> None:
    with pytest.raises(NotFoundError):
        client.search(index="absent", query=MATCH, rerank=True)
    with pytest.raises(BadRequestError) as raised:
        client.search(index=INDEX, query={"nope": {}}, rerank=True)
    assert raised.value.__context__ is None
    for refused in ({"ext": {"rerank": {}}}, {"derived": {}}, {"search_pipeline": "_none"}):
        with pytest.raises(BadRequestError):
            client.search(index=INDEX, body={"query": MATCH, **refused}, rerank=True)


def test_a_client_made_by_options_reranks(client: Any) -> None:
    derived = client.options(request_timeout=5, opaque_id="mine")
    assert derived.search(index=INDEX, query=MATCH, size=1, rerank=True)["rerank"]["applied"] is True
    ignored = client.options(ignore_status=404).search(index="absent", query=MATCH, rerank=True)
    assert (ignored.meta.status, ignored["status"]) == (404, 404)
    with pytest.warns(DeprecationWarning, match="transport options"):
        ignored = client.search(index="absent", query=MATCH, rerank=True, ignore=404)
    assert ignored["status"] == 404


def test_a_subclass_of_the_application_keeps_its_class(elasticsearch_url: str, plain_client: Elasticsearch) -> None:
    class Own(Elasticsearch):
        def mine(self) -> str:
            return "mine"

    own = Own(elasticsearch_url)
    wrapped: Any = osrerank.wrap(osrerank.wrap(own, scorer=BY_LENGTH), scorer=BY_LENGTH)
    assert wrapped.search(index=INDEX, query=MATCH, size=1, rerank=True)["hits"]["hits"][0]["_id"] == "29"
    assert wrapped.options(opaque_id="x").mine() == "mine"
    wrapped.close()
    assert own.count(index=INDEX)["count"] == 30  # closing leaves the connections open
    own.close()


def test_the_asynchronous_elasticsearch_client_reranks(elasticsearch_url: str, client: Any) -> None:
    async def searched() -> Any:
        async with AsyncElasticsearch(elasticsearch_url) as plain:
            wrapped = osrerank.wrap(plain, scorer=BY_LENGTH)
            response = await wrapped.options(opaque_id="x").search(index=INDEX, query=MATCH, size=3, rerank=True)
            several = await wrapped.msearch(searches=[{"index": INDEX}, {"query": MATCH, "size": 3}], rerank=True)
            with pytest.raises(NotFoundError):
                await wrapped.search(index="absent", query=MATCH, rerank=True)
            await wrapped.close()
            return response, several["responses"][0]

    expected = ids(client.search(index=INDEX, query=MATCH, size=3, rerank=True))
    assert [ids(found) for found in asyncio.run(searched())] == [expected, expected]


def test_a_change_by_indices_is_noticed_at_once(plain_client: Elasticsearch, elasticsearch_url: str) -> None:
    text = {"type": "text"}

    def of(name: str) -> dict[str, Any]:
        return {"index": "elastic-anew", "mappings": {"properties": {name: text}}}

    wrapped, read = osrerank.wrap(plain_client, scorer=BY_LENGTH), []
    for name in ("text", "body"):
        wrapped.options(ignore_status=404).indices.delete(index="elastic-anew")
        wrapped.indices.create(**of(name))
        plain_client.index(index="elastic-anew", id="1", document={name: "blood"}, refresh=True)
        read += wrapped.search(index="elastic-anew", query="blood", rerank=True)["rerank"]["fields"]
    assert read == ["text", "body"]

    async def read_by_the_asynchronous_client() -> list[str]:
        async with AsyncElasticsearch(elasticsearch_url) as client:
            wrapped, read = osrerank.wrap(client, scorer=BY_LENGTH), []
            for name in ("body", "text"):
                await wrapped.indices.delete(index="elastic-anew")
                await wrapped.indices.create(**of(name))
                await client.index(index="elastic-anew", id="1", document={name: "blood"}, refresh=True)
                read += (await wrapped.search(index="elastic-anew", query="blood", rerank=True))["rerank"]["fields"]
            await wrapped.close()
            return read

    assert asyncio.run(read_by_the_asynchronous_client()) == ["body", "text"]
    plain_client.indices.delete(index="elastic-anew")


@pytest.mark.long
def test_opensearch_py_is_not_imported_where_only_elasticsearchs_client_is_used(plain_client: Elasticsearch) -> None:
    node = next(iter(plain_client.transport.node_pool.all())).base_url
    program = f"""
import asyncio, sys, osrerank
from elasticsearch import AsyncElasticsearch, Elasticsearch
found = osrerank.wrap(Elasticsearch("{node}")).search(index="{INDEX}", query="blood", rerank=True)
assert found["rerank"]["applied"] is not None
print([name for name in sys.modules if name.partition(".")[0] == "opensearchpy"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opensearch_py_recognises_elasticsearch_and_reranks(
    elasticsearch_url: str, plain_client: Elasticsearch
) -> None:
    with osrerank.connect(elasticsearch_url, scorer=BY_LENGTH) as client:
        assert client.engine is Engine.ELASTICSEARCH
        response = client.search("blood", index=INDEX, size=2, rerank=True)
        assert (ids(response), response["rerank"]["applied"]) == (["29", "28"], True)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An Elasticsearch with users; two of them may see different documents, and a third neither version nor cluster."""
    settings = ("xpack.security.enabled=true", "xpack.license.self_generated.type=trial")
    with elasticsearch(tmp_path_factory.mktemp("secured"), *settings) as url:
        client = Elasticsearch(url, basic_auth=("tester", "elastic-test"), request_timeout=60)
        client.cluster.health(wait_for_status="yellow")
        texts = [(team, n, f"blood {'x' * n}") for team in "ab" for n in range(9)]
        actions = [{"_index": INDEX, "_id": f"{team}{n}", "text": text, "team": team} for team, n, text in texts]
        helpers.bulk(client, actions, refresh=True)
        for team in "ab":
            client.security.put_role(name=team, indices=[shown_to(team)])
            client.security.put_user(username=team, password=f"{team}-password", roles=[team])
        yield url
        client.close()


def shown_to(team: str) -> dict[str, Any]:
    return {"names": [INDEX], "privileges": ["read"], "query": {"term": {"team": team}}}


def teams(response: Any) -> tuple[set[str], int, bool]:
    hits = response["hits"]["hits"]
    return {hit["_id"][0] for hit in hits}, len(hits), response["rerank"]["applied"]


def test_users_of_one_transport_see_their_own_documents_on_every_page(secured: str) -> None:
    plain = Elasticsearch(secured)
    wrapped: Any = osrerank.wrap(plain, scorer=BY_LENGTH)
    key = Elasticsearch(secured, basic_auth=("tester", "elastic-test")).security.create_api_key(
        name="b", role_descriptors={"b": {"indices": [shown_to("b")]}}
    )
    for _ in range(2):
        for credentials, team in (
            ({"basic_auth": ("a", "a-password")}, "a"),
            ({"basic_auth": ("b", "b-password")}, "b"),
            ({"api_key": key["encoded"]}, "b"),
            ({"basic_auth": ("tester", "elastic-test"), "headers": {"es-security-runas-user": "a"}}, "a"),
        ):
            user = wrapped.options(**credentials)
            for start in (0, 4):
                response = user.search(index=INDEX, query=MATCH, size=4, from_=start, rerank={"depth": 6})
                assert teams(response) == ({team}, 4, True)
    assert len({wrapped.options(basic_auth=(team, "x")).searcher.authentication for team in "abab"}) == 2
    authentications = [wrapped.options(basic_auth=("a", "x"), opaque_id=name).searcher.authentication for name in "xy"]
    assert authentications[0] == authentications[1]
    wrapped.close()
    plain.close()


def test_users_of_opensearch_py_headers_see_their_own_documents(secured: str) -> None:
    with osrerank.connect(secured, scorer=BY_LENGTH) as client:
        plain = OpenSearch(secured)
        for _ in range(2):
            for team, word in (("a", "YTphLXBhc3N3b3Jk"), ("b", "YjpiLXBhc3N3b3Jk")):
                headers = {"authorization": f"Basic {word}"}
                assert plain.count(index=INDEX, headers=headers)["count"] == 9
                response = client.search(index=INDEX, body={"query": MATCH}, size=4, rerank=True, headers=headers)
                assert teams(response) == ({team}, 4, True)


def test_the_documented_roles_are_enough_to_build_vectors_and_to_search(
    secured: str, no_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))
    admin = Elasticsearch(secured, basic_auth=("tester", "elastic-test"))
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for name, role in re.findall(r"PUT _security/role/(\w+)\n(.*?)```", page, re.DOTALL):
        admin.security.put_role(name=name, **json.loads(role))
        admin.security.put_user(username=name, password="a-password", roles=[name])
    helpers.bulk(admin, [{"_index": "notes", "_id": str(n), "text": f"blood {n}"} for n in range(20)], refresh=True)
    with osrerank.connect(secured.replace("//", "//osrerank_vectors:a-password@")) as builder:
        assert build_vectors(builder, "notes").encoded == 20
        assert str(build_vectors(builder, "notes")) == "nothing changed since the last build"
    with osrerank.connect(secured.replace("//", "//osrerank_search:a-password@")) as client:
        response = client.search("blood", index="notes", rerank={"deadline_ms": None})
        assert (response["rerank"]["applied"], response["rerank"]["stages"][0]["encoded"]) == (True, 0)


def test_an_api_key_that_may_only_read_is_enough(secured: str) -> None:
    admin = Elasticsearch(secured, basic_auth=("tester", "elastic-test"))
    role = {"reader": {"indices": [{"names": [INDEX], "privileges": ["read", "view_index_metadata"]}]}}
    key = admin.security.create_api_key(name="reader", role_descriptors=role)["encoded"]
    with pytest.raises(ApiError):
        Elasticsearch(secured, api_key=key).info()
    with osrerank.connect(secured, scorer=BY_LENGTH, api_key=key) as client:
        assert client.engine is Engine.ELASTICSEARCH
        assert client.search("blood", index=INDEX, rerank=True)["rerank"]["applied"] is True
