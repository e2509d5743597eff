"""Elasticsearch's own reranking retriever, calling the rerank server: set up, used, and taken away."""

import json
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner, Result
from elasticsearch import Elasticsearch, helpers
from opensearchpy import OpenSearch

import osrerank
from osrerank.cli import cli
from osrerank.errors import InstallError
from osrerank.server.elasticsearch.install import EndpointSpec, Installer
from osrerank.testing import FunctionScorer
from tests.http_server import running
from tests.rerank_server import Reply, answering
from tests.servers import ROOT, elasticsearch, free_port
from tests.waiting import wait_until

INDEX = "notes"
TOKEN = "correct-horse-battery-staple"
BY_LENGTH = FunctionScorer(lambda _query, text: len(text) / 10)
SETTINGS = ("xpack.security.enabled=true", "xpack.license.self_generated.type=trial")


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elasticsearch]:
    """A superuser of an Elasticsearch with a trial licence, an index, and a user with the role that the page gives."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    with elasticsearch(tmp_path_factory.mktemp("trial"), *SETTINGS) as url:
        client = Elasticsearch(url, basic_auth=("tester", "elastic-test"), request_timeout=60)
        client.cluster.health(wait_for_status="yellow")
        client.indices.create(index=INDEX, mappings={"properties": {"text": {"type": "text"}}})
        actions = [{"_index": INDEX, "_id": str(n), "text": f"blood {'x' * n}"} for n in range(30)]
        helpers.bulk(client, actions, refresh=True)
        for name, role in re.findall(r"PUT _security/role/(\w+)\n(.*?)```", page, re.DOTALL):
            client.security.put_role(name=name, body=json.loads(role))
        client.security.put_user(username="setup", password="setup-password", roles=["osrerank_setup"])
        roles = ["osrerank_search", "osrerank_pipeline_search"]
        client.security.put_user(username="reader", password="reader-password", roles=roles)
        yield client
        client.close()


@pytest.fixture
def address(admin: Elasticsearch) -> Iterator[str]:
    """The address with the user who installs."""
    node = next(iter(admin.transport.node_pool.all()))
    yield f"http://setup:setup-password@127.0.0.1:{node.config.port}"
    assert endpoints(admin) == []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running(BY_LENGTH, token=TOKEN) as url:
        yield url


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("OSRERANK_SERVER_TOKEN", TOKEN)

    def invoke(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, ["--url", address, "pipeline", *arguments], **options)

    return invoke


def endpoints(admin: Elasticsearch) -> list[str]:
    found = admin.inference.get(inference_id="_all")["endpoints"]
    return [endpoint["inference_id"] for endpoint in found if not endpoint["inference_id"].startswith(".")]


def test_the_search_that_is_shown_gets_the_models_scores(
    admin: Elasticsearch, server: str, run: Callable[..., Result]
) -> None:
    dry = run("install", "--index", INDEX, "--server", server, "--dry-run")
    assert (dry.output, endpoints(admin)) == (f"inference endpoint osrerank, calling {server}\n", [])
    assert run("status").exit_code == 1
    outcome = run("install", "--index", INDEX, "--server", server)
    assert (outcome.exit_code, endpoints(admin)) == (0, ["osrerank"]), outcome.output + str(outcome.exception)
    assert TOKEN not in outcome.output + str(admin.inference.get(inference_id="_all"))
    body = json.loads(outcome.output.partition(f"POST {INDEX}/_search\n")[2].replace("what lowers blood", "blood"))
    reader = admin.options(basic_auth=("reader", "reader-password"))
    hits = reader.search(index=INDEX, body=body)["hits"]["hits"]
    left_alone = osrerank.wrap(reader, scorer=BY_LENGTH).search(index=INDEX, body=body, rerank=True)
    assert left_alone["rerank"]["reason_code"] == "retriever"
    assert [hit["_score"] for hit in left_alone["hits"]["hits"]] == [hit["_score"] for hit in hits]
    assert [hit["_id"] for hit in hits] == [str(n) for n in range(29, 19, -1)]
    scores = [1 / (1 + math.exp(-len(hit["_source"]["text"]) / 10)) for hit in hits]
    assert [hit["_score"] - 1 for hit in hits] == pytest.approx(scores, abs=1e-6)
    assert run("status").exit_code == 0
    assert "Nothing to do" in run("install", "--fields", "text", "--server", server).output
    assert "Nothing was changed." in run("remove", input="n\n").output
    assert run("remove", "--yes").output == "removed inference endpoint osrerank\n"
    assert run("remove").output == "There is no inference endpoint osrerank.\n"


def test_another_server_takes_the_place_of_the_first_after_a_trial(
    admin: Elasticsearch, server: str, run: Callable[..., Result]
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    failed = run("install", "--fields", "text", "--server", dead)
    assert (failed.exit_code, endpoints(admin)) == (1, [])
    assert "Connection refused" in str(failed.exception)
    assert run("install", "--fields", "text", "--server", server).exit_code == 0
    failed = run("install", "--fields", "text", "--server", dead, "--yes")
    assert (failed.exit_code, endpoints(admin), run("status").exit_code) == (1, ["osrerank"], 0)
    with running(BY_LENGTH) as other:
        assert run("install", "--fields", "text", "--server", other, "--yes").exit_code == 0
        assert f"server: {other}" in run("status").output
    assert run("status").exit_code == 1
    run("remove", "--yes")


def test_a_failed_trial_leaves_nothing_on_the_cluster(
    admin: Elasticsearch, server: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(lambda _received: Reply({"results": [{"index": 0, "relevance_score": 0.9}]})) as one_score:
        failed = run("install", "--fields", "text", "--server", one_score.url)
        assert "1 scores for two texts" in str(failed.exception)
    monkeypatch.setenv("OSRERANK_SERVER_TOKEN", "wrong")
    failed = run("install", "--fields", "text", "--server", server)
    assert "OSRERANK_SERVER_TOKEN is the server's token" in str(failed.exception)
    replies = [Reply({"results": [{"index": n, "relevance_score": 0.9} for n in range(2)]})]
    with answering(lambda _received: replies[-1]) as changed:
        assert run("install", "--fields", "text", "--server", changed.url).exit_code == 0
        replies.append(Reply({"error": "wrong token"}, 401))
        assert "OSRERANK_SERVER_TOKEN is the server's token" in run("status").output
        assert "a user who" not in run("status").output + str(failed.exception)
    run("remove", "--yes")
    assert endpoints(admin) == []


def test_installations_at_the_same_time_leave_one_endpoint(
    admin: Elasticsearch, server: str, address: str, run: Callable[..., Result]
) -> None:
    def install(_number: int) -> str:
        try:
            Installer(OpenSearch(address), "osrerank").install(EndpointSpec(server, "text", TOKEN))
        except InstallError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(install, range(4))] == [""] * 4
    assert endpoints(admin) == ["osrerank"]
    run("remove", "--yes")


def test_leftovers_of_an_interrupted_installation_are_removed_and_foreign_endpoints_stay(
    admin: Elasticsearch, server: str, address: str, run: Callable[..., Result]
) -> None:
    ours = EndpointSpec(server, "text", TOKEN).build_body()
    theirs = json.loads(json.dumps(ours).replace("osrerank", "theirs"))
    for name, endpoint in {"osrerank-trial-0123abcd": ours, "mine-trial-0123abcd": ours, "mine": theirs}.items():
        admin.inference.put(task_type="rerank", inference_id=name, inference_config=endpoint)
    assert run("remove").output == "removed inference endpoint osrerank-trial-0123abcd\n"
    for words in (("install", "--fields", "text", "--server", server), ("status",), ("remove",)):
        assert "osrerank did not create" in str(run(*words, "--name", "mine").exception)
    assert endpoints(admin) == ["mine", "mine-trial-0123abcd"]
    for name in endpoints(admin):
        admin.inference.delete(inference_id=name)


def test_on_the_basic_licence_the_installer_names_the_licence_that_is_needed(elasticsearch_url: str) -> None:
    arguments = ["--url", elasticsearch_url, "pipeline", "install", "--fields", "text", "--server", "http://a"]
    with Elasticsearch(elasticsearch_url) as client:
        wait_until(lambda: "license" in client.options(ignore_status=404).license.get())  # made after the start
    for dry in ((), ("--dry-run",)):
        outcome = CliRunner().invoke(cli, [*arguments, *dry])
        assert "needs an active Enterprise or trial licence, but the cluster has basic" in str(outcome.exception)
