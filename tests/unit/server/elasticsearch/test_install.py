"""Installation of the rerank pipeline on Elasticsearch, with recorded answers of the cluster."""

from typing import Any

import pytest
from click.testing import CliRunner
from opensearchpy import NotFoundError, RequestError, TransportError

from osrerank.cli import cli
from osrerank.errors import ConfigError, InstallError
from osrerank.server.elasticsearch.install import EndpointSpec, Installer

SERVER = "http://10.1.2.3:8088"
SPEC = EndpointSpec(SERVER, "text", "secret")
TRIAL = "books-trial"
DOWN = TransportError(500, "status_exception", {"error": {"type": "status_exception", "reason": "Connection refused"}})
EXISTS = RequestError(400, "resource_already_exists_exception", {"error": {"reason": "books already exists"}})


class Cluster:
    """Has inference endpoints, and records what is changed; a server whose address ends in "down" is never reached."""

    def __init__(self, *, licence: str = "trial", status: str = "active", scores: int = 2) -> None:
        self.transport = self
        self.licence = {"license": {"type": licence, "status": status}}
        self.scores = scores
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.changes: list[tuple[str, str]] = []
        self.meanwhile: dict[str, dict[str, Any]] = {}

    def perform_request(self, method: str, path: str, body: Any = None, **_options: Any) -> Any:
        name = path.rpartition("/")[2]
        if name == "_license":
            return self.licence
        if name == "_all":
            return {"endpoints": list(self.endpoints.values())}
        if method in ("PUT", "DELETE"):
            kind = name if len(name) < len(TRIAL) else TRIAL
            self.changes.append((method, kind))
            if method == "PUT" and kind == "books":
                self.endpoints.update(self.meanwhile)
        if method == "PUT":
            return self._put(name, body)
        if name not in self.endpoints:
            raise NotFoundError(404, "not found", {})
        if method == "DELETE":
            return self.endpoints.pop(name)
        if method == "GET":
            return {"endpoints": [self.endpoints[name]]}
        self._call(self.endpoints[name])
        return {"rerank": [{"index": n, "relevance_score": 0.5} for n in range(self.scores)]}

    def _put(self, name: str, body: Any) -> None:
        if name in self.endpoints:
            raise EXISTS
        self._call(body)
        self.endpoints[name] = shown(name, body)

    def _call(self, endpoint: Any) -> None:
        if "down" in endpoint["service_settings"]["url"]:
            raise DOWN


def shown(name: str, body: Any) -> dict[str, Any]:
    """An endpoint as Elasticsearch shows it: without secrets, with settings of its own."""
    settings = {key: value for key, value in body["service_settings"].items() if key != "secret_parameters"}
    return {"inference_id": name, "service": "custom", "service_settings": {**settings, "batch_size": 10}}


def test_a_trial_endpoint_scores_a_pair_before_the_endpoint_is_made() -> None:
    cluster = Cluster()
    installer = Installer(cluster, "books")  # type: ignore[arg-type]
    installer.install(SPEC)
    assert cluster.changes == [("PUT", TRIAL), ("DELETE", TRIAL), ("PUT", "books")]
    assert installer.plan(SPEC) == []
    assert installer.status()["server"] == SERVER


@pytest.mark.parametrize("cluster", [Cluster(), Cluster(scores=1)])
def test_a_failed_trial_leaves_the_previous_endpoint(cluster: Cluster) -> None:
    installer = Installer(cluster, "books")  # type: ignore[arg-type]
    cluster.endpoints["books"] = before = shown("books", EndpointSpec("http://other", "text").build_body())
    with pytest.raises(InstallError):
        installer.install(SPEC if cluster.scores == 1 else EndpointSpec("http://down", "text"))
    assert cluster.endpoints == {"books": before}
    assert cluster.changes == [("PUT", TRIAL), ("DELETE", TRIAL)]


@pytest.mark.parametrize("other", [EndpointSpec("http://other", "text"), EndpointSpec(SERVER, "text")])
def test_another_server_or_token_gets_a_new_endpoint(other: EndpointSpec) -> None:
    cluster = Cluster()
    cluster.endpoints["books"] = shown("books", other.build_body())
    Installer(cluster, "books").install(SPEC)  # type: ignore[arg-type]
    assert cluster.changes[2:] == [("DELETE", "books"), ("PUT", "books")]
    assert cluster.endpoints == {"books": shown("books", SPEC.build_body())}


def test_a_simultaneous_equal_installation_is_accepted() -> None:
    cluster = Cluster()
    cluster.meanwhile = {"books": shown("books", SPEC.build_body())}
    Installer(cluster, "books").install(SPEC)  # type: ignore[arg-type]
    cluster.endpoints.clear()
    cluster.meanwhile = {"books": shown("books", EndpointSpec("http://other", "text").build_body())}
    with pytest.raises(InstallError, match="someone else removed or changed the inference endpoint"):
        Installer(cluster, "books").install(SPEC)  # type: ignore[arg-type]
    assert cluster.endpoints == cluster.meanwhile


@pytest.mark.parametrize(("licence", "status"), [("basic", "active"), ("platinum", "active"), ("trial", "expired")])
def test_a_licence_without_the_retriever_is_named_before_anything_is_made(licence: str, status: str) -> None:
    cluster = Cluster(licence=licence, status=status)
    installer = Installer(cluster, "books")  # type: ignore[arg-type]
    with pytest.raises(InstallError, match=rf"needs an active Enterprise or trial licence.* {licence} \({status}\)"):
        installer.install(SPEC)
    assert cluster.changes == []
    cluster.endpoints["books"] = shown("books", SPEC.build_body())
    assert "Enterprise" in installer.status()["failure"]
    assert installer.remove() == ["removed inference endpoint books"]


@pytest.mark.parametrize("name", ["Books", "-books", "books_", "a.b", "a/b", ""])
def test_a_name_that_elasticsearch_refuses_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="use a-z and 0-9"):
        Installer(Cluster(), name)  # type: ignore[arg-type]


INSTALL = ("install", "--server", SERVER, "--fields")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*INSTALL, "text", "--oversample", "2"), "leave out --oversample: Elasticsearch's inference endpoints have"),
        ((*INSTALL, "text", "--read-timeout", "8"), "leave out --read-timeout"),
        ((*INSTALL, "text", "--template", "books"), "leave out --template"),
        ((*INSTALL, "title,text"), "accepts one field, not title, text: set --fields"),
        (("status", "--index", "books"), "leave out --index"),
    ],
)
def test_a_missing_inference_feature_of_elasticsearch_is_an_error(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("OSRERANK_ENGINE", "elasticsearch")
    outcome = CliRunner().invoke(cli, ["--url", "http://127.0.0.1:9", "pipeline", *arguments])
    assert isinstance(outcome.exception, ConfigError)
    assert message in str(outcome.exception)
