"""The cluster's own rerank pipeline as time goes by: templates, another key, an older osrerank, a restarted node."""

import contextlib

import pytest
from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import InstallError
from osrerank.server.opensearch.cluster import ML_NODES_ONLY, PRIVATE_ALLOWED, TRUSTED_URLS
from osrerank.server.opensearch.install import Installer, PipelineSpec
from osrerank.testing import FunctionScorer
from tests.engine_facts import needs_plugins
from tests.http_server import running
from tests.servers import free_port, missing, opensearch_home, start_opensearch

pytestmark = [pytest.mark.integration, pytest.mark.long]
INDEX, NAME, TEMPLATE = "kept-up", "kept-up", "kept-up-template"
MEMORY = "plugins.ml_commons.native_memory_threshold"  # remote models need none, and the machine may be full
NEEDED = {TRUSTED_URLS: [r"^http://127\.0\.0\.1:.*$"], PRIVATE_ALLOWED: True, ML_NODES_ONLY: False, MEMORY: 100}
TEXTS = ["plague plague plague", 'the "black" plague of the city, and very many other words beside it']
QUERY = 'the "black" plague \\ city\n{{size}}'


@pytest.fixture(scope="module")
def cluster(opensearch_url):
    with contextlib.closing(OpenSearch(opensearch_url)) as client:
        needs_plugins(client, "opensearch-ml", "opensearch-neural-search")
        prepare(client)
        yield client
        client.indices.delete(index=INDEX)
        client.cluster.put_settings(body={"persistent": dict.fromkeys(NEEDED)})


def prepare(client):
    client.cluster.put_settings(body={"persistent": NEEDED})
    lines = [line for index, text in enumerate(TEXTS) for line in ({"index": {"_id": str(index)}}, {"text": text})]
    client.bulk(index=INDEX, body=lines, refresh=True)


@pytest.fixture
def installer(cluster):
    installer = Installer(cluster, NAME)
    installer.remove()
    yield installer
    installer.remove()


@pytest.fixture(scope="module")
def server():
    with running(FunctionScorer(lambda _query, text: -float(len(text)))) as url:
        yield url


def by_template(client, **params):
    """Return the hits of a caller who sends a text alone: the shortest first where they are reranked."""
    body = {"id": TEMPLATE, "params": {"query": QUERY, **params}}
    return [hit["_id"] for hit in client.search_template(index=INDEX, body=body)["hits"]["hits"]]


def templates(client):
    with contextlib.suppress(NotFoundError):
        return client.get_script(id=TEMPLATE)["script"]["source"]
    return None


def test_a_template_reranks_without_a_default(cluster, server, installer):
    first_pass = cluster.search(index=INDEX, body={"query": {"match": {"text": QUERY}}})
    assert [hit["_id"] for hit in first_pass["hits"]["hits"]] == ["1", "0"]
    spec = PipelineSpec(server, ("text",), template=TEMPLATE)
    assert f"search template {TEMPLATE}" in installer.plan(spec)
    installer.install(spec)
    assert by_template(cluster) == ["0", "1"]
    assert by_template(cluster, size=1) == ["1"]  # OpenSearch's processor sees the hits of the page alone
    assert by_template(cluster, size=1, **{"from": 1}) == ["0"]
    lines = [{"index": INDEX}, {"id": TEMPLATE, "params": {"query": QUERY}}]
    (answer,) = cluster.msearch_template(body=lines)["responses"]
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["0", "1"]
    assert installer.status()["templates"] == [TEMPLATE]
    assert installer.plan(PipelineSpec(server, ("text",))) == []
    assert "search template" in " ".join(installer.remove())
    assert templates(cluster) is None


def test_a_foreign_index_template_is_left_alone(cluster, server, installer):
    theirs = {"script": {"lang": "mustache", "source": '{"query":{"match_all":{}}}'}}
    cluster.put_script(id=TEMPLATE, body=theirs)
    try:
        for act in (installer.plan, installer.install):
            with pytest.raises(
                InstallError,
                match=f"there is a search template {TEMPLATE} that osrerank did not make for the pipeline {NAME}",
            ):
                act(PipelineSpec(server, ("text",), template=TEMPLATE))
        assert installer.find() is None
        assert templates(cluster) == theirs["script"]["source"]
    finally:
        cluster.delete_script(id=TEMPLATE)


@pytest.mark.slow
def test_an_index_template_is_updated_with_its_pipeline(cluster, server, installer):
    installer.install(PipelineSpec(server, ("text",), template=TEMPLATE))
    before = templates(cluster)
    changed = {"script": {"lang": "mustache", "source": before.replace('"text"', '"title"')}}
    cluster.put_script(id=TEMPLATE, body=changed)
    assert installer.status()["drifted"][0].startswith(TEMPLATE)
    installer.install(PipelineSpec(server, ("text",)))  # with another model, whose id the template has, too
    assert templates(cluster) not in (before, changed["script"]["source"])
    assert installer.status()["drifted"] == []
    assert by_template(cluster) == ["0", "1"]


def test_the_index_template_of_another_pipeline_is_left_alone(cluster, server, installer):
    other = Installer(cluster, f"{NAME}-2")
    other.install(PipelineSpec(server, ("text",), template=TEMPLATE))
    try:
        with pytest.raises(
            InstallError,
            match=f"there is a search template {TEMPLATE} that osrerank did not make for the pipeline {NAME}",
        ):
            installer.install(PipelineSpec(server, ("text",), template=TEMPLATE))
        installer.install(PipelineSpec(server, ("text",)))
        installer.remove()
        assert (other.status()["failure"], by_template(cluster)) == (None, ["0", "1"])
    finally:
        other.remove()


@pytest.mark.slow
def test_a_new_address_and_a_new_key_replace_the_old(cluster, installer):
    first, second = "first key of the server", "second key of the server"
    scorer = FunctionScorer(lambda _query, text: -float(len(text)))
    with running(scorer, token=first) as url:
        installer.install(PipelineSpec(url, ("text",), token=first, template=TEMPLATE))
        assert by_template(cluster) == ["0", "1"]
    with running(scorer, token=second) as url:
        assert installer.status()["failure"]
        installer.install(PipelineSpec(url, ("text",), token=second))
        assert (installer.status()["server"], installer.status()["failure"]) == (url, None)
        assert by_template(cluster) == ["0", "1"]
        port = int(url.rpartition(":")[2])
    with running(scorer, token=first, port=port) as url:  # the same address: the key alone is another one
        assert installer.status()["failure"]
        assert installer.plan(PipelineSpec(url, ("text",), token=first)) != []
        installer.install(PipelineSpec(url, ("text",), token=first))
        assert installer.plan(PipelineSpec(url, ("text",), token=first)) == []
        assert by_template(cluster) == ["0", "1"]


@pytest.mark.slow
def test_the_pipeline_reranks_after_a_restart_of_the_node(server, tmp_path):
    home = opensearch_home()
    if home is None:
        missing("a folder of OpenSearch's distribution: set TEST_OPENSEARCH_HOME")
    port = free_port()
    with start_opensearch(home, tmp_path, port=port) as (url, _process), contextlib.closing(OpenSearch(url)) as client:
        prepare(client)
        Installer(client, NAME).install(PipelineSpec(server, ("text",), template=TEMPLATE))
        assert by_template(client) == ["0", "1"]
    with start_opensearch(home, tmp_path, port=port) as (url, _process), contextlib.closing(OpenSearch(url)) as client:
        client.cluster.health(wait_for_status="yellow", timeout=60)
        status = Installer(client, NAME).status()
        assert (status["installed"], status["failure"], status["drifted"]) == (True, None, [])
        assert by_template(client) == ["0", "1"]
        assert Installer(client, NAME).plan(PipelineSpec(server, ("text",))) == []
