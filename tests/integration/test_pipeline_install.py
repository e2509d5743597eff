"""OpenSearch's own rerank pipeline on a real OpenSearch: set up, used by callers without osrerank, and taken away."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from opensearchpy import NotFoundError, OpenSearch

from osrerank import connect
from osrerank.cli import cli
from osrerank.cli.demo import MAPPING, Sample
from osrerank.errors import InstallError
from osrerank.server.opensearch.cluster import ML_NODES_ONLY, PRIVATE_ALLOWED, TRUSTED_URLS
from osrerank.server.opensearch.install import Installer, PipelineSpec
from osrerank.server.opensearch.ml_commons import CallLimits
from osrerank.testing import FunctionScorer
from tests.articles import fill
from tests.engine_facts import needs_plugins
from tests.http_server import running
from tests.rankings import ids
from tests.rerank_server import Reply, answering
from tests.servers import free_port

pytestmark = pytest.mark.integration

INDEX = "in-pipeline"
NAME = "osrerank"
WINDOW = 20
KINDS = ("connectors", "models", "model_groups")
MEMORY = "plugins.ml_commons.native_memory_threshold"  # remote models need none, and the machine may be full
NEEDED = {TRUSTED_URLS: [r"^http://127\.0\.0\.1:.*$"], PRIVATE_ALLOWED: True, ML_NODES_ONLY: False}


@pytest.fixture(scope="module")
def cluster(opensearch_url):
    client = OpenSearch(opensearch_url)
    needs_plugins(client, "opensearch-ml", "opensearch-neural-search")
    client.cluster.put_settings(body={"transient": {MEMORY: 100}, "persistent": NEEDED})
    yield client
    client.cluster.put_settings(body={"transient": {MEMORY: None}, "persistent": dict.fromkeys(NEEDED)})
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
    documents = {document["id"]: {"text": document["text"]} for document in sample.documents[:600]}
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
    cluster_settings = {"settings": cluster.cluster.get_settings(flat_settings=True)}
    cluster_settings |= {"pipelines": {}, "connectors": [], "models": [], "model_groups": []}
    with contextlib.suppress(NotFoundError):
        cluster_settings["pipelines"] = cluster.transport.perform_request("GET", "/_search/pipeline")
    for kind in KINDS:
        with contextlib.suppress(NotFoundError):
            body = {"query": {"match_all": {}}}
            answer = cluster.transport.perform_request("POST", f"/_plugins/_ml/{kind}/_search", body=body)
            cluster_settings[kind] = sorted(hit["_id"] for hit in answer["hits"]["hits"])
    return cluster_settings


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


def test_the_pipelines_order_is_the_clients_order(cluster, server, sample, installer, opensearch_url):
    installer.install(PipelineSpec(server, ("text",)))
    client = connect(opensearch_url)
    for query in list(sample.queries.values())[:6]:
        mine, theirs = by_client(client, query, WINDOW), plain(cluster, query, WINDOW)
        assert ids(mine) == ids(theirs)
        chances = [hit["_rerank"]["vectors"]["probability"] for hit in mine["hits"]["hits"]]
        assert [hit["_score"] for hit in theirs["hits"]["hits"]] == pytest.approx(chances, abs=WINDOW * 1e-7 + 1e-7)
    client.close()


def test_without_the_rerank_server_the_pipeline_keeps_the_first_pass_order(cluster, sample, installer):
    with running(FunctionScorer()) as url:
        installer.install(PipelineSpec(url, ("text",)))
    first_pass = ids(cluster.search(index=INDEX, body={"query": {"match": {"text": "which plague"}}, "size": 5}))
    assert ids(plain(cluster, "which plague", 5)) == first_pass
    assert "Connection refused" in installer.status()["failure"]


GOOD = Reply({"results": [{"index": 0, "relevance_score": 0.9}, {"index": 1, "relevance_score": 0.1}]})


@pytest.mark.parametrize("hangs", [False, True])
def test_with_a_failing_rerank_server_the_pipeline_keeps_the_first_pass_order(cluster, sample, installer, hangs):
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
        installer.install(PipelineSpec(faulty.url, ("text",), limits=CallLimits(connect_s=1, read_s=2)))
        began = time.monotonic()
        assert ids(plain(cluster, query, 5)) == first_pass
        assert time.monotonic() - began < 10  # 30 s without limits of the connector
        assert not hangs or time.monotonic() - began > 2
        leave.set()


def test_a_changed_pipeline_is_noticed_and_repaired(cluster, server, installer):
    installer.install(PipelineSpec(server, ("text",)))
    assert installer.status()["drifted"] == []
    pipeline = cluster.transport.perform_request("GET", f"/_search/pipeline/{NAME}")[NAME]
    del pipeline["response_processors"][0]["rerank"]["ignore_failure"]  # as an older osrerank made it
    cluster.transport.perform_request("PUT", f"/_search/pipeline/{NAME}", body=pipeline)
    assert [difference.split()[0] for difference in installer.status()["drifted"]] == [NAME]
    assert f"search pipeline {NAME}:" in " ".join(installer.plan(PipelineSpec(server, ("text",))))
    installer.install(PipelineSpec(server, ("text",)))
    assert (installer.status()["drifted"], installer.plan(PipelineSpec(server, ("text",)))) == ([], [])


def test_oversampling_reranks_more_than_the_page(cluster, server, sample, installer, opensearch_url):
    installer.install(PipelineSpec(server, ("text",), oversample=4))
    client = connect(opensearch_url)
    for query in list(sample.queries.values())[:3]:
        assert ids(plain(cluster, query, 5)) == ids(by_client(client, query, 20))[:5]
    client.close()


def test_installing_twice_and_removing_leaves_the_cluster_as_it_was(cluster, server, sample, installer):
    before = state(cluster)
    spec = PipelineSpec(server, ("text",))
    assert len(installer.plan(spec)) == 2
    assert state(cluster) == before
    installer.install(spec)
    installed = state(cluster)
    assert installed != before
    assert installer.plan(spec) == []
    installer.install(spec)
    assert state(cluster) == installed
    installer.install(PipelineSpec(server, ("text",), oversample=2))
    assert [len(state(cluster)[kind]) for kind in KINDS] == [0, 1, 1]
    installer.remove()
    assert state(cluster) == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_removing_a_pipeline_leaves_another_pipeline(cluster, server, sample, installer, order):
    before = state(cluster)
    installers = [installer, Installer(cluster, f"{NAME}-2")]
    for one in installers:
        one.install(PipelineSpec(server, ("text",)))
    first, second = (installers[at] for at in order)
    first.remove()
    assert second.status()["failure"] is None
    second.remove()
    assert state(cluster) == before


def at_once(url, *specs):
    """Install them from threads; return for each that it works, or what was said."""
    together = threading.Barrier(len(specs))

    def install(spec):
        with contextlib.closing(OpenSearch(url)) as client:
            together.wait()
            try:
                Installer(client, NAME).install(spec)
            except InstallError as error:
                return str(error)
            return "works"

    with ThreadPoolExecutor(len(specs)) as pool:
        return list(pool.map(install, specs))


def test_two_simultaneous_installations_of_equal_pipelines_work(cluster, server, sample, installer, opensearch_url):
    before = state(cluster)
    assert at_once(opensearch_url, *[PipelineSpec(server, ("text",), template="both")] * 2) == ["works", "works"]
    assert (installer.status()["failure"], installer.status()["drifted"]) == (None, [])
    assert [len(state(cluster)[kind]) for kind in KINDS] == [0, 1, 1]
    installer.remove()
    assert state(cluster) == before


def test_of_two_simultaneous_different_installations_at_least_one_works(
    cluster, server, sample, installer, opensearch_url
):
    before = state(cluster)
    outcomes = at_once(opensearch_url, PipelineSpec(server, ("text",)), PipelineSpec(server, ("title",)))
    assert "works" in outcomes
    assert [outcome for outcome in outcomes if outcome != "works" and "at the same time" not in outcome] == []
    assert (installer.status()["failure"], installer.status()["drifted"]) == (None, [])
    installer.remove()
    assert state(cluster) == before


@pytest.mark.parametrize("again", [False, True])
def test_leftovers_of_a_killed_installation_are_removed(cluster, server, sample, installer, opensearch_url, again):
    before = state(cluster)
    has_asked, leave = threading.Event(), threading.Event()

    def hang(_received):
        has_asked.set()
        leave.wait(60)
        return GOOD

    with answering(hang) as slow:
        command = ["--url", opensearch_url, "pipeline", "install", "--server", slow.url, "--fields", "text"]
        process = subprocess.Popen([sys.executable, "-m", "osrerank", *command], stdout=subprocess.DEVNULL)
        assert has_asked.wait(60)
        process.kill()
        process.wait()
        leave.set()
    assert len(state(cluster)["models"]) == 1
    if again:
        installer.install(PipelineSpec(server, ("text",)))
        assert [len(state(cluster)[kind]) for kind in KINDS] == [0, 1, 1]
    installer.remove()
    assert state(cluster) == before


def test_a_server_that_cannot_be_reached_changes_nothing(cluster, sample, installer):
    before = state(cluster)
    with pytest.raises(InstallError, match=r"Connection refused.*check that its nodes reach it"):
        installer.install(PipelineSpec(f"http://127.0.0.1:{free_port()}", ("text",)))
    assert state(cluster) == before


def test_a_failed_change_leaves_the_installation_as_it_was(cluster, server, sample, installer):
    installer.install(PipelineSpec(server, ("text",)))
    before = state(cluster)
    with pytest.raises(InstallError, match="Connection refused"):
        installer.install(PipelineSpec(f"http://127.0.0.1:{free_port()}", ("text",), oversample=3))
    assert state(cluster) == before
    assert installer.status()["failure"] is None


def test_the_pipeline_sends_the_token_with_every_call(cluster, sample, installer):
    before = state(cluster)
    with running(FunctionScorer(), token="s3cret") as url:
        with pytest.raises(InstallError, match="OSRERANK_SERVER_TOKEN"):
            installer.install(PipelineSpec(url, ("text",), token="wrong"))
        assert state(cluster) == before
        installer.install(PipelineSpec(url, ("text",), token="s3cret"))
        assert plain(cluster, "which plague", 5)["hits"]["hits"]
        assert installer.plan(PipelineSpec(url, ("text",), token="s3cret")) == []
        assert "s3cret" not in json.dumps(cluster.transport.perform_request("GET", "/_search/pipeline"))


def test_a_pipeline_that_an_index_has_as_its_default_is_not_removed(cluster, server, sample, installer):
    installer.install(PipelineSpec(server, ("text",)))
    setting = "index.search.default_pipeline"
    cluster.indices.put_settings(index=INDEX, body={setting: NAME})
    try:
        body = {"query": {"match": {"text": "plague"}}}  # without ext.rerank it keeps the first pass's order
        without = cluster.search(index=INDEX, body=body, search_pipeline="_none")
        assert ids(cluster.search(index=INDEX, body=body)) == ids(without)
        with pytest.raises(InstallError, match=rf'send PUT {INDEX}/_settings {{"{setting}": null}} first'):
            installer.remove()
        assert installer.status()["default_for"] == [INDEX]
    finally:
        cluster.indices.put_settings(index=INDEX, body={setting: None})


def test_a_foreign_pipeline_is_left_alone(cluster, server):
    body = {"description": "mine", "response_processors": []}
    cluster.transport.perform_request("PUT", "/_search/pipeline/mine", body=body)
    try:
        for act in (lambda one: one.install(PipelineSpec(server, ("text",))), Installer.remove, Installer.status):
            with pytest.raises(InstallError, match="osrerank did not create"):
                act(Installer(cluster, "mine"))
    finally:
        cluster.transport.perform_request("DELETE", "/_search/pipeline/mine")


def test_the_pipeline_commands_install_show_and_remove(cluster, server, sample, installer, opensearch_url):
    def run(*arguments, **options):
        return CliRunner().invoke(cli, ["--url", opensearch_url, "pipeline", *arguments], **options)

    before = state(cluster)
    outcome = run("install", "--fields", "text", "--server", server, "--dry-run")
    assert (outcome.exit_code, state(cluster)) == (0, before), outcome.output
    assert run("status").exit_code == 1
    outcome = run("install", "--fields", "text", "--server", f"{server}/")
    assert (outcome.exit_code, "works" in outcome.output) == (0, True), outcome.output
    assert "Nothing to do" in run("install", "--fields", "text", "--server", server).output
    assert run("status").exit_code == 0
    installed = state(cluster)
    for words in (("install", "--fields", "text", "--server", server, "--oversample", "2"), ("remove",)):
        refused = run(*words, input="n\n")
        assert (refused.exit_code, state(cluster)) == (1, installed)
        assert "Nothing was changed." in refused.output
    assert "removed search pipeline" in run("remove", "--yes").output
    assert "There is no" in run("remove").output
    assert state(cluster) == before


def test_settings_that_are_missing_are_shown_as_a_request_and_not_changed(cluster, server, installer, opensearch_url):
    def install(*options):
        arguments = ["--url", opensearch_url, "pipeline", "install", "--fields", "text", "--server", server, *options]
        return CliRunner().invoke(cli, arguments)

    theirs = {
        "persistent": {**dict.fromkeys(NEEDED), TRUSTED_URLS: ["^https://mine/.*$"]},
        "transient": {PRIVATE_ALLOWED: False},
    }
    cluster.cluster.put_settings(body=theirs)
    try:
        before = state(cluster)
        refused = install()
        assert (refused.exit_code, state(cluster)) == (1, before)
        assert "send the request above to the cluster, then run this command again" in str(refused.exception)
        line, _, body = refused.output.partition("\n")
        assert line == "PUT _cluster/settings"
        assert install("--dry-run").exit_code == 0
        cluster.cluster.put_settings(body=json.loads(body))
        settings = cluster.cluster.get_settings(flat_settings=True)
        assert "^https://mine/.*$" in settings["persistent"][TRUSTED_URLS]
        assert install().exit_code == 0
        installer.remove()
        assert cluster.cluster.get_settings(flat_settings=True) == settings
    finally:
        cluster.cluster.put_settings(body={"persistent": {**NEEDED}, "transient": {PRIVATE_ALLOWED: None}})


HEADLINE = {
    "headline": "Low pressure",
    "body": "Low blood pressure comes from too little salt and water.",
    "sku": "A-1",
}


def test_the_installer_finds_the_text_fields_of_an_index_or_names_what_is_missing(
    cluster, server, installer, opensearch_url
):
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
    run_result = run("install", "--server", server, "--index", "news", "--yes")
    assert (run_result[0], installer.find().fields) == (0, ("headline", "body", "sku")), run_result
    assert (run("status")[0], installer.status()["missing_fields"]) == (0, [])
    for words, *arguments in (
        ("no fields are set: list them with --fields",),
        ("there is no index nothing", "--index", "nothing"),
        ("the mapping has no text field, only sku", "--index", "codes"),
        ("the mapping has no field 'bdy'; the nearest name is 'body'", "--index", "news", "--fields", "headline,bdy"),
    ):
        code, output = run("install", "--server", server, *arguments)
        assert (code, words in output) == (1, True), output
    cluster.indices.put_alias(index="news-2", name="news")
    cluster.indices.delete_alias(index="news-1", name="news")
    missing = [f"no index behind news has {name}; the nearest name is story" for name in ("headline", "body", "sku")]
    assert installer.status()["missing_fields"] == missing
    assert run("status")[0] == 1
    assert run("status", "--index", "news-1")[0] == 0
    assert installer.status("gone")["missing_fields"] == ["there is no index behind gone"]
    cluster.indices.delete(index="news-1,news-2,codes")
