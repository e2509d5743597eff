"""OpenSearch's own rerank pipeline on a real OpenSearch: set up, used by callers without osrerank, and taken away."""

import contextlib
import json
import re
import threading
import time

import pytest
from click.testing import CliRunner
from opensearchpy import NotFoundError, OpenSearch

from osrerank import connect
from osrerank.cli import cli
from osrerank.cli.demo import MAPPING, Sample
from osrerank.errors import InstallError
from osrerank.server.opensearch.install import Installer, Wish
from osrerank.server.opensearch.ml_commons import CallBounds, Models
from osrerank.testing import FunctionScorer, ManualClock
from tests.articles import fill
from tests.http_server import running
from tests.rankings import ids
from tests.rerank_server import Reply, answering
from tests.servers import free_port

pytestmark = pytest.mark.integration

INDEX = "in-pipeline"
NAME = "osrerank"
WINDOW = 20
MEMORY = "plugins.ml_commons.native_memory_threshold"  # remote models need none, and the machine may be full


@pytest.fixture(scope="module")
def cluster(opensearch_url):
    client = OpenSearch(opensearch_url)
    client.cluster.put_settings(body={"transient": {MEMORY: 100}})
    yield client
    client.cluster.put_settings(body={"transient": {MEMORY: None}})
    client.close()


@pytest.fixture(scope="module")
def server():
    with running() as url:
        yield url


@pytest.fixture(scope="module")
def sample(cluster):
    sample = Sample.load()
    cluster.indices.delete(index=INDEX, ignore_unavailable=True)
    cluster.indices.create(index=INDEX, body=MAPPING)
    documents = {one["id"]: {"text": one["text"]} for one in sample.documents[:600]}
    fill(cluster, INDEX, documents)
    yield sample
    cluster.indices.delete(index=INDEX)


@pytest.fixture
def installer(cluster):
    installer = Installer(cluster, NAME)
    installer.remove()
    yield installer
    installer.remove()


def state(cluster):
    """What an installation touches."""
    found = {"settings": cluster.cluster.get_settings(flat_settings=True)}
    found |= {"pipelines": {}, "connectors": [], "models": [], "model_groups": []}
    with contextlib.suppress(NotFoundError):
        found["pipelines"] = cluster.transport.perform_request("GET", "/_search/pipeline")
    for kind in ("connectors", "models", "model_groups"):
        with contextlib.suppress(NotFoundError):
            body = {"query": {"match_all": {}}}
            answer = cluster.transport.perform_request("POST", f"/_plugins/_ml/{kind}/_search", body=body)
            found[kind] = sorted(hit["_id"] for hit in answer["hits"]["hits"])
    found["defaults"] = {
        name: one["settings"].get("index.search.default_pipeline")
        for name, one in cluster.indices.get_settings(index="*", flat_settings=True).items()
        if not name.startswith(".")  # ml-commons creates its own at the first installation
    }
    return found


def shared_word(*ids):
    """Whether ids have a word in common where ml-commons searches for them."""
    return bool(set.intersection(*({*one.lower().split("-")} for one in ids)))


def plain(cluster, query, size):
    """A search by a caller who knows nothing of osrerank."""
    ext = {"rerank": {"query_context": {"query_text": query}}}
    body = {"query": {"match": {"text": query}}, "size": size, "ext": ext}
    return cluster.transport.perform_request(
        "POST", f"/{INDEX}/_search", params={"search_pipeline": NAME}, body=body, timeout=120
    )


def by_client(client, query, size):
    arguments = {"depth": size, "blend": "replace", "fields": ["text"], "deadline_ms": None}
    return client.search(index=INDEX, body={"query": {"match": {"text": query}}}, size=size, rerank=arguments)


def test_order_is_the_clients(cluster, server, sample, installer, opensearch_url):
    installer.install(Wish(server, NAME, ("text",)))
    client = connect(opensearch_url)
    for query in list(sample.queries.values())[:6]:
        mine, theirs = by_client(client, query, WINDOW), plain(cluster, query, WINDOW)
        assert ids(mine) == ids(theirs)
        chances = [hit["_rerank"]["vectors"]["probability"] for hit in mine["hits"]["hits"]]
        assert [hit["_score"] for hit in theirs["hits"]["hits"]] == pytest.approx(chances, abs=WINDOW * 1e-7 + 1e-7)
    client.close()


def test_a_server_that_is_gone_costs_the_order_only(cluster, sample, installer):
    with running(FunctionScorer()) as url:
        installer.install(Wish(url, NAME, ("text",)))
    first_pass = ids(cluster.search(index=INDEX, body={"query": {"match": {"text": "which plague"}}, "size": 5}))
    assert ids(plain(cluster, "which plague", 5)) == first_pass
    assert "Connection refused" in installer.status()["failure"]


GOOD = Reply({"results": [{"index": 0, "relevance_score": 0.9}, {"index": 1, "relevance_score": 0.1}]})


@pytest.mark.parametrize("hangs", [False, True])
def test_a_server_that_fails_costs_the_order_only(cluster, sample, installer, hangs):
    query = "which plague"
    first_pass = ids(cluster.search(index=INDEX, body={"query": {"match": {"text": query}}, "size": 5}))
    leave = threading.Event()

    def answer(received):
        """Answer two pairs, as an installation asks, and everything else with the fault."""
        if len(received.body["documents"]) == 2:
            return GOOD
        if hangs:
            leave.wait(60)
        return Reply({}, 500)

    with answering(answer) as faulty:
        installer.install(Wish(faulty.url, NAME, ("text",), bounds=CallBounds(connect_s=1, read_s=2)))
        began = time.monotonic()
        assert ids(plain(cluster, query, 5)) == first_pass
        assert time.monotonic() - began < 10  # 30 s without bounds of the connector
        assert not hangs or time.monotonic() - began > 2
        leave.set()


def test_a_pipeline_that_was_changed_is_found_and_mended(cluster, server, installer):
    installer.install(Wish(server, NAME, ("text",)))
    assert installer.status()["drifted"] == []
    whole = cluster.transport.perform_request("GET", f"/_search/pipeline/{NAME}")[NAME]
    del whole["response_processors"][0]["rerank"]["ignore_failure"]  # as an older osrerank made it
    cluster.transport.perform_request("PUT", f"/_search/pipeline/{NAME}", body=whole)
    assert [one.split()[0] for one in installer.status()["drifted"]] == [NAME]
    (step,) = installer.plan(Wish(server, NAME, ("text",)))
    assert step.startswith(f"search pipeline {NAME}:")
    installer.install(Wish(server, NAME, ("text",)))
    assert (installer.status()["drifted"], installer.plan(Wish(server, NAME, ("text",)))) == ([], [])


def test_oversampling_reranks_more_than_the_page(cluster, server, sample, installer, opensearch_url):
    installer.install(Wish(server, NAME, ("text",), oversample=4))
    client = connect(opensearch_url)
    for query in list(sample.queries.values())[:3]:
        assert ids(plain(cluster, query, 5)) == ids(by_client(client, query, 20))[:5]
    client.close()


def test_installing_twice_and_removing_leaves_the_cluster_as_it_was(cluster, server, sample, installer):
    before = state(cluster)
    wish = Wish(server, NAME, ("text",))
    assert len(installer.plan(wish)) == 5
    assert state(cluster) == before
    installer.install(wish)
    installed = state(cluster)
    assert installed != before
    assert installer.plan(wish) == []
    installer.install(wish)
    assert state(cluster) == installed
    installer.install(Wish(server, NAME, ("text",), oversample=2, default_for=INDEX))
    assert state(cluster)["defaults"][INDEX] == NAME
    installer.remove()
    assert state(cluster) == before


def test_what_others_changed_meanwhile_stays(cluster, server, installer):
    trusted = "plugins.ml_commons.trusted_connector_endpoints_regex"
    before = cluster.cluster.get_settings(flat_settings=True)
    cluster.cluster.put_settings(body={"persistent": {trusted: ["^https://mine/.*$"]}})
    try:
        installer.install(Wish(server, NAME, ("text",)))
        entries = cluster.cluster.get_settings(flat_settings=True)["persistent"][trusted]
        cluster.cluster.put_settings(body={"persistent": {trusted: [*entries, "^https://theirs/.*$"]}})
        installer.remove()
        entries = cluster.cluster.get_settings(flat_settings=True)["persistent"][trusted]
        assert entries == ["^https://mine/.*$", "^https://theirs/.*$"]
    finally:
        cluster.cluster.put_settings(body={"persistent": {trusted: None}})
    assert cluster.cluster.get_settings(flat_settings=True) == before


def test_a_server_that_cannot_be_reached_changes_nothing(cluster, sample, installer):
    before = state(cluster)
    with pytest.raises(InstallError, match=r"Connection refused.*check that the cluster's nodes reach osrerank serve"):
        installer.install(Wish(f"http://127.0.0.1:{free_port()}", NAME, ("text",)))
    assert state(cluster) == before


def test_a_failed_change_leaves_the_installation_as_it_was(cluster, server, sample, installer, caplog):
    installer.install(Wish(server, NAME, ("text",)))
    before = state(cluster)
    with pytest.raises(InstallError, match="Connection refused"):
        installer.install(Wish(f"http://127.0.0.1:{free_port()}", NAME, ("text",), oversample=3))
    after = state(cluster)
    left = re.findall(r"\[connector-left\] OpenSearch keeps connector (\S+):", caplog.text)
    assert not left or shared_word(*before["connectors"], *left)  # what ml-commons cannot tell apart
    after["connectors"] = sorted({*after["connectors"]} - {*left})
    assert after == before
    assert installer.status()["failure"] is None


def test_a_connector_that_ml_commons_takes_for_the_used_one_is_left_until_all_is_removed(
    cluster, server, installer, caplog
):
    installer.install(Wish(server, NAME, ("text",)))
    (used,) = state(cluster)["connectors"]
    path = "/.plugins-ml-connector/_doc/"
    unused = cluster.transport.perform_request("GET", path + used)["_source"]
    cluster.transport.perform_request("PUT", f"{path}{used}-x", params={"refresh": "true"}, body=unused)
    clock = ManualClock(0.0)
    assert Models(cluster, NAME, clock, clock.sleep).remove(keep=installer.find().model_id) == []
    assert f"[connector-left] OpenSearch keeps connector {used}-x:" in caplog.text
    installer.remove()
    assert state(cluster)["connectors"] == []


def test_a_token_goes_with_every_call(cluster, sample, installer):
    before = state(cluster)
    with running(FunctionScorer(), token="s3cret") as url:
        with pytest.raises(InstallError, match="OSRERANK_SERVER_TOKEN"):
            installer.install(Wish(url, NAME, ("text",), token="wrong"))
        assert state(cluster) == before
        installer.install(Wish(url, NAME, ("text",), token="s3cret"))
        assert plain(cluster, "which plague", 5)["hits"]["hits"]
        assert installer.plan(Wish(url, NAME, ("text",), token="s3cret")) == []
        assert "s3cret" not in json.dumps(cluster.transport.perform_request("GET", "/_search/pipeline"))


def test_an_index_s_default_is_given_back(cluster, server, sample, installer):
    cluster.indices.put_settings(index=INDEX, body={"index.search.default_pipeline": "_none"})
    try:
        installer.install(Wish(server, NAME, ("text",), default_for=INDEX))
        body = {"query": {"match": {"text": "plague"}}}  # without ext.rerank it keeps the first pass's order
        without = cluster.search(index=INDEX, body=body, search_pipeline="_none")
        assert ids(cluster.search(index=INDEX, body=body)) == ids(without)
        installer.remove()
        settings = cluster.indices.get_settings(index=INDEX, flat_settings=True)[INDEX]["settings"]
        assert settings["index.search.default_pipeline"] == "_none"
    finally:
        cluster.indices.put_settings(index=INDEX, body={"index.search.default_pipeline": None})


def test_a_foreign_pipeline_is_left_alone(cluster, server):
    body = {"description": "mine", "response_processors": []}
    cluster.transport.perform_request("PUT", "/_search/pipeline/mine", body=body)
    try:
        for act in (lambda one: one.install(Wish(server, "mine", ("text",))), Installer.remove, Installer.status):
            with pytest.raises(InstallError, match="not osrerank's"):
                act(Installer(cluster, "mine"))
    finally:
        cluster.transport.perform_request("DELETE", "/_search/pipeline/mine")


def test_commands(cluster, server, sample, installer, opensearch_url):
    def run(*arguments, **options):
        return CliRunner().invoke(cli, ["--url", opensearch_url, "pipeline", *arguments], **options)

    before = state(cluster)
    outcome = run("install", "--fields", "text", "--server", server, "--dry-run", "--default-for", INDEX)
    assert outcome.exit_code == 0, outcome.output
    assert "private_ip_enabled: not set -> True" in outcome.output
    assert "ext.rerank.query_context is reranked from now on" in outcome.output
    refused = run("install", "--fields", "text", "--server", server, input="n\n")
    assert refused.exit_code == 1
    assert "Nothing was changed." in refused.output
    assert state(cluster) == before
    assert run("status").exit_code == 1
    outcome = run("install", "--fields", "text", "--server", f"{server}/", input="y\n")
    assert outcome.exit_code == 0, outcome.output
    assert "works" in outcome.output
    assert "Nothing to do" in run("install", "--fields", "text", "--server", server).output
    assert run("status").exit_code == 0
    refused = run("remove", input="n\n")
    assert "private_ip_enabled: as before" in refused.output
    assert (refused.exit_code, run("status").exit_code) == (1, 0)
    assert "removed search pipeline" in run("remove", "--yes").output
    assert "There is no" in run("remove").output
    assert state(cluster) == before


HEADLINE = {
    "headline": "Low pressure",
    "body": "Low blood pressure comes from too little salt and water.",
    "sku": "A-1",
}


def test_the_fields_of_an_index_are_found_or_it_says_what_was(cluster, server, installer, opensearch_url):
    def run(*arguments):
        outcome = CliRunner().invoke(cli, ["--url", opensearch_url, "pipeline", *arguments])
        return outcome.exit_code, outcome.output + str(outcome.exception or "")

    for name, document in (("news-1", HEADLINE), ("news-2", {"story": HEADLINE["body"]}), ("codes", {"sku": "A-1"})):
        kind = "keyword" if name == "codes" else "text"
        properties = {field: {"type": kind} for field in document}
        cluster.indices.create(index=name, body={"mappings": {"properties": properties}})
        if name != "news-2":
            cluster.index(index=name, body=document, refresh=True)
    cluster.indices.put_alias(index="news-1", name="news")
    found = run("install", "--server", server, "--index", "news", "--yes")
    assert (found[0], installer.find().fields) == (0, ("headline", "body")), found
    assert (run("status")[0], installer.status()["missing_fields"]) == (0, [])
    for words, *arguments in (
        ("which fields is the model to read?",),
        ("there is no index nothing", "--index", "nothing"),
        ("the mapping has no text field, only sku", "--index", "codes"),
        ("it has no documents yet", "--index", "news-2"),
        ("the mapping has no bdy; the nearest name is body", "--index", "news", "--fields", "headline,bdy"),
    ):
        code, said = run("install", "--server", server, *arguments)
        assert (code, words in said) == (1, True), said
    cluster.indices.put_alias(index="news-2", name="news")
    cluster.indices.delete_alias(index="news-1", name="news")
    missing = [f"no index behind news has {name}; the nearest name is story" for name in ("headline", "body")]
    assert installer.status()["missing_fields"] == missing
    assert run("status")[0] == 1
    assert run("status", "--index", "news-1")[0] == 0
    assert installer.status("gone")["missing_fields"] == ["there is no index behind gone"]
    cluster.indices.delete(index="news-1,news-2,codes")
