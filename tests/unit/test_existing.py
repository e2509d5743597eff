"""Clients of opensearch-py that exist already, and are wrapped."""

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import opensearchpy
import pytest
from elasticsearch import AsyncElasticsearch, Elasticsearch
from opensearchpy import AsyncOpenSearch, OpenSearch, RequestsHttpConnection
from opensearchpy.serializer import JSONSerializer

import osrerank
from osrerank.aio import connect_async
from osrerank.errors import ConfigError
from osrerank.testing import CannedTransport
from tests.rankings import BY_LENGTH, ids
from tests.recording_engine import MAPPING, answer, recording_engine
from tests.rerank_server import Received, Reply, RerankServer, answering


@pytest.fixture
def engine() -> Iterator[RerankServer]:
    with recording_engine() as server:
        yield server


def test_requests_are_signed_by_opensearch_pys_aws_signer(engine: RerankServer) -> None:
    pytest.importorskip("botocore")
    credentials = importlib.import_module("botocore.credentials").Credentials("AKIDEXAMPLE", "secret")
    signer = opensearchpy.RequestsAWSV4SignerAuth(credentials, "eu-west-1", "aoss")
    hosts = [{"host": "127.0.0.1", "port": engine.server_port}]
    existing = OpenSearch(hosts, http_auth=signer, connection_class=RequestsHttpConnection)
    with osrerank.wrap(existing, scorer=BY_LENGTH) as client:
        assert ids(client.search("low blood", index="articles", rerank=True)) == ["d1", "d2", "d0"]
    assert [request.path.partition("?")[0] for request in engine.received] == [
        "/articles/_mapping", "/", "/osrerank-vectors-articles/_search",
        "/articles/_settings/index.search.default_pipeline", "/articles/_search",
    ]  # fmt: skip
    for request in engine.received:
        assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
        assert "/eu-west-1/aoss/aws4_request" in request.headers["authorization"]
        assert "x-amz-date" in request.headers
        assert "secret" not in request.headers["authorization"]


def test_a_wrapped_client_keeps_transport_and_serializer_open(engine: RerankServer) -> None:
    class Own(JSONSerializer):
        mimetype = "application/json"

    existing = OpenSearch(
        f"http://app:word@127.0.0.1:{engine.server_port}", serializer=Own(), headers={"X-Tenant": "seven"}
    )
    before = ids(existing.search(index="articles", body={"query": {"match_all": {}}}))
    client = osrerank.wrap(existing, scorer=BY_LENGTH, rerank={"depth": 7})
    assert isinstance(client, osrerank.Client)
    assert client.transport is existing.transport
    assert isinstance(client.transport.serializer, Own)
    assert client.searcher.defaults.base.depth == 7
    assert ids(client.search("low", index="articles", rerank=True)) == ["d1", "d2", "d0"]
    assert client.indices.get_mapping(index="articles") == MAPPING
    client.close()
    assert ids(existing.search(index="articles", body={"query": {"match_all": {}}})) == before
    assert all(request.headers["x-tenant"] == "seven" for request in engine.received)
    assert all(request.headers["authorization"].startswith("Basic ") for request in engine.received)


def test_an_existing_asynchronous_client_is_wrapped(engine: RerankServer) -> None:
    async def search() -> Any:
        async with AsyncOpenSearch(f"http://127.0.0.1:{engine.server_port}", headers={"X-Tenant": "seven"}) as existing:
            client = osrerank.wrap(existing, scorer=BY_LENGTH)
            assert client.transport is existing.transport
            response = await client.search("low", index="articles", rerank=True)
            await client.close()
            await existing.search(index="articles", body={})
            return response

    assert ids(asyncio.run(search())) == ["d1", "d2", "d0"]
    assert all(request.headers["x-tenant"] == "seven" for request in engine.received)


def test_unknown_options_of_a_wrapped_client_are_refused() -> None:
    options: dict[str, Any] = {"hosts": "localhost"}
    with pytest.raises(ConfigError, match="wrap has no argument 'hosts'; the arguments are model, vector_model"):
        osrerank.wrap(OpenSearch(), **options)


@pytest.mark.parametrize("other", ["http://localhost:9200", None, object()])
def test_wrapping_an_object_that_is_no_client_is_refused(other: Any) -> None:
    with pytest.raises(ConfigError, match="wrap needs an OpenSearch or AsyncOpenSearch of opensearch-py, or an"):
        osrerank.wrap(other)


class TenantClient(OpenSearch):
    def __init__(self, tenant: str, port: int) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.tenant = tenant

    def search(self, *arguments: Any, body: Any = None, **options: Any) -> Any:
        tenants_only = {"term": {"tenant": self.tenant}}
        return super().search(*arguments, body={**body, "post_filter": tenants_only}, **options)


def test_searches_of_a_wrapped_client_go_through_the_methods_of_its_own_class(engine: RerankServer) -> None:
    existing = TenantClient("seven", engine.server_port)
    for client in (osrerank.wrap(existing, scorer=BY_LENGTH), osrerank.wrap(osrerank.wrap(existing, scorer=BY_LENGTH))):
        assert isinstance(client, osrerank.Client)
        assert isinstance(client, TenantClient)
        client.search("low", index="articles", rerank=True)
        client.search("low", index="articles")
    searches = [request for request in engine.received if request.path.startswith("/articles/_search")]
    assert len(searches) == 4
    assert all(request.body["post_filter"] == {"term": {"tenant": "seven"}} for request in searches)


class NarrowClient(OpenSearch):
    def search(self, body: Any = None, index: Any = "articles") -> Any:
        return super().search(body=body, index=index)

    def msearch(self, body: Any, index: Any = "articles") -> Any:
        return super().msearch(body=body, index=index)


class AsyncNarrowClient(AsyncOpenSearch):
    async def search(self, body: Any = None, index: Any = "articles") -> Any:
        return await super().search(body=body, index=index)


def test_a_subclass_of_opensearchs_client_may_have_fewer_arguments_and_defaults_of_its_own(
    engine: RerankServer,
) -> None:
    body = {"query": {"match": {"text": "low"}}}

    async def search(url: str, *, rerank: bool) -> Any:
        async with AsyncNarrowClient(url) as existing:
            return await osrerank.wrap(existing, scorer=BY_LENGTH).search(body=body, rerank=rerank)

    url = f"http://127.0.0.1:{engine.server_port}"
    client = osrerank.wrap(NarrowClient(url), scorer=BY_LENGTH)
    for rerank, order in ((True, ["d1", "d2", "d0"]), (False, ["d0", "d1", "d2"])):
        assert ids(client.search(body=body, rerank=rerank)) == order
        assert ids(asyncio.run(search(url, rerank=rerank))) == order
    searches = [request.path.partition("?")[0] for request in engine.received if "/_search" in request.path]
    assert {path for path in searches if "osrerank" not in path} == {"/articles/_search"}
    transport: Any = CannedTransport
    canned = osrerank.wrap(NarrowClient(transport_class=transport, answer={"responses": []}), scorer=BY_LENGTH)
    canned.msearch(body=[{}, body])
    assert canned.transport.requests[0]["url"] == "/articles/_msearch"


def test_a_subclass_of_elasticsearchs_client_gets_the_reranked_response(engine: RerankServer) -> None:
    seen: list[tuple[int, Any]] = []

    class Own(Elasticsearch):
        def search(self, **arguments: Any) -> Any:
            self.count(index="articles")  # another request
            response = super().search(**arguments)
            seen.append((response["took"], response["rerank"]["applied"]))
            return response["hits"]["hits"]

    class AsyncOwn(AsyncElasticsearch):
        async def search(self, **arguments: Any) -> Any:
            response = await super().search(**arguments)
            seen.append((response["took"], response["rerank"]["applied"]))
            return response["hits"]["hits"]

    async def search(url: str) -> Any:
        async with AsyncOwn(url) as existing:
            client = osrerank.wrap(existing, scorer=BY_LENGTH)
            return await client.search(query={"match": {"text": "low"}}, index="articles", rerank=True)

    url = f"http://127.0.0.1:{engine.server_port}"
    with Own(url) as existing:
        client = osrerank.wrap(existing, scorer=BY_LENGTH)
        for hits in (client.search(query="low", index="articles", rerank=True), asyncio.run(search(url))):
            assert [hit["_id"] for hit in hits] == ["d1", "d2", "d0"]
    assert [applied for _took, applied in seen] == [True, True]


def test_the_class_of_a_wrapped_elasticsearch_client_may_have_a_constructor_of_its_own(
    engine: RerankServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(Elasticsearch):
        def __init__(self, tenant: str, url: str) -> None:
            super().__init__(url)
            self.tenant = tenant

    with Own("seven", f"http://127.0.0.1:{engine.server_port}") as existing:
        client = osrerank.wrap(existing, scorer=BY_LENGTH)
        client.search(query="low", index="articles", rerank=True)
    assert "/osrerank-vectors-articles/_search" in [request.path.partition("?")[0] for request in engine.received]
    assert not caplog.records


USERS: dict[str, dict[str, Any]] = {
    "Basic YW5uOnNlc2FtZQ==": {"http_auth": ("ann", "sesame")},
    "Basic Ym9iOnNlc2FtZQ==": {"http_auth": "Ym9iOnNlc2FtZQ=="},
    "ApiKey a2V5OnNlc2FtZQ==": {"api_key": ("key", "sesame"), "headers": {"X-Tenant": "seven"}},
}
"""Arguments of opensearch-py's methods with credentials, by the header that they become."""
CLAUSE = {"query": {"match": {"text": "low blood"}}}


def _answer_any(received: Received) -> Reply:
    """Answer a search, a multi-search of one search, or the rendering of a template."""
    path = received.path.partition("?")[0]
    if path == "/_render/template":
        return Reply({"template_output": CLAUSE})
    reply = answer(received)
    return Reply({"took": 1, "responses": [reply.content]}) if path.endswith("_msearch") else reply


def _check_users(engine: RerankServer, authorization: str) -> None:
    """Check that all requests came from this user, and that one read the mapping."""
    assert {request.headers["authorization"] for request in engine.received} == {authorization}
    assert [request.path for request in engine.received].count("/articles/_mapping") == 1
    engine.received.clear()


def test_all_requests_of_a_search_have_the_credentials_of_its_arguments() -> None:
    with answering(_answer_any, read=bytes) as engine:
        address = f"http://app:word@127.0.0.1:{engine.server_port}"
        with osrerank.connect(address, scorer=BY_LENGTH) as client:
            for authorization, arguments in USERS.items():
                options: Any = {"index": "articles", "rerank": True, **arguments}
                responses: list[Any] = [client.search("low blood", **options)]
                responses.append(client.search_template(body={"source": CLAUSE}, **options))
                responses += client.msearch(body=[{}, CLAUSE], **options)["responses"]
                responses += client.msearch_template(body=[{}, {"source": CLAUSE}], **options)["responses"]
                assert [ids(response) for response in responses] == [["d1", "d2", "d0"]] * 4
                _check_users(engine, authorization)
            with pytest.raises(ValueError, match="Only one of 'http_auth' and 'api_key'"):
                client.search("low blood", rerank=True, http_auth=("a", "b"), api_key=("a", "b"))


def test_all_requests_of_an_asynchronous_search_have_the_credentials_of_its_arguments() -> None:
    async def search(engine: RerankServer) -> None:
        address = f"http://app:word@127.0.0.1:{engine.server_port}"
        async with connect_async(address, scorer=BY_LENGTH) as client:
            for authorization, arguments in USERS.items():
                options: Any = {"index": "articles", "rerank": True, **arguments}
                await client.search("low blood", **options)
                await client.search_template(body={"source": CLAUSE}, **options)
                await client.msearch(body=[{}, CLAUSE], **options)
                await client.msearch_template(body=[{}, {"source": CLAUSE}], **options)
                _check_users(engine, authorization)

    with answering(_answer_any, read=bytes) as engine:
        asyncio.run(search(engine))


class Proxy:
    """Stands in for a client that is made later, as a ``LocalProxy`` of Flask does."""

    __slots__ = ("client",)

    def __init__(self, client: Any) -> None:
        self.client = client

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.client)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@pytest.mark.parametrize("client_class", [OpenSearch, Elasticsearch])
def test_a_proxy_of_a_client_is_wrapped(engine: RerankServer, client_class: Any) -> None:
    with client_class(f"http://127.0.0.1:{engine.server_port}") as existing:
        proxy: Any = Proxy(existing)
        client: Any = osrerank.wrap(proxy, scorer=BY_LENGTH)
        assert ids(client.search(query="low", index="articles", rerank=True)) == ["d1", "d2", "d0"]
