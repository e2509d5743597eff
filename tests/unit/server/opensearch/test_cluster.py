import json

import pytest
from click.testing import CliRunner
from opensearchpy import AuthorizationException, OpenSearch
from opensearchpy.serializer import JSONSerializer

from osrerank.cli import cli
from osrerank.errors import ConfigError, InstallError
from osrerank.server.opensearch.cluster import (
    ML_NODES_ONLY,
    PRIVATE,
    TRUSTED,
    TRUSTED_PRIVATE,
    SettingChange,
    check_plugins,
    joined,
    needed_changes,
    restored,
    trusted,
)
from osrerank.server.opensearch.install import Installer

SERVER = "http://10.1.2.3:8088"
DEFAULTS = {TRUSTED: ["^https://vendor/.*$"], TRUSTED_PRIVATE: [], PRIVATE: "false", ML_NODES_ONLY: "true"}


class Answers:
    """A transport that answers by path."""

    def __init__(self, hosts=None, *, answers, **_options):
        self.answers = answers
        self.serializer = JSONSerializer()

    def perform_request(self, method, url, **_options):
        answer = self.answers[url]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        pass


def cluster(*, version="3.6.0", roles=("data",), persistent=None, transient=None, **answers):
    settings = {"persistent": persistent or {}, "transient": transient or {}, "defaults": DEFAULTS}
    known = {
        "/": {"version": {"number": version}},
        "/_nodes": {"nodes": {"a": {"roles": ["data"]}, "b": {"roles": list(roles)}}},
        "/_cluster/settings": settings,
    }
    return OpenSearch(transport_class=Answers, answers={**known, **answers})


def wanted(client, server=SERVER):
    return {change.name: change.after for change in needed_changes(client, server)}


BOTH = ["^https://vendor/.*$", trusted(SERVER)]


@pytest.mark.parametrize(
    ("given", "server", "changes"),
    [
        ({}, SERVER, {TRUSTED: BOTH, PRIVATE: True, ML_NODES_ONLY: False}),
        ({"roles": ["ml"]}, SERVER, {TRUSTED: BOTH, PRIVATE: True}),  # nodes for models run them
        ({"version": "2.19.3"}, SERVER, {TRUSTED: BOTH, PRIVATE: True, ML_NODES_ONLY: False}),
        *(({"version": one}, SERVER, {TRUSTED_PRIVATE: [trusted(SERVER)]}) for one in ("3.7.0", "3.10.1")),
        ({"roles": ["ml"]}, "http://reranker.invalid:8088", {PRIVATE: True}),  # a name that the cluster alone knows
        ({"persistent": {TRUSTED: BOTH, PRIVATE: "true", ML_NODES_ONLY: "false"}}, SERVER, {}),
    ],
)
def test_what_a_server_needs_and_is_not_there_is_changed(given, server, changes):
    found = wanted(cluster(**given), server)
    assert changes.items() <= found.items()
    assert (not found) == (not changes)
    assert (TRUSTED_PRIVATE in found) == (TRUSTED_PRIVATE in changes)


def test_a_transient_setting_is_in_the_way():
    with pytest.raises(InstallError, match=r"transient cluster setting .*private_ip_enabled"):
        needed_changes(cluster(transient={PRIVATE: "false"}), SERVER)


def test_the_trusted_expression_is_of_that_server_alone_and_no_private_address_is_needed():
    import re

    expression = trusted("http://10.1.2.3:8088")
    assert re.match(expression, "http://10.1.2.3:8088/v1/rerank")
    for other in ("http://10.1.2.3:80889/v1", "http://10a1.2.3:8088/v1", "http://10.1.2.3:8088.evil/v1"):
        assert not re.match(expression, other)
    assert set(wanted(cluster(), "https://8.8.8.8")) == {TRUSTED, ML_NODES_ONLY}
    assert ML_NODES_ONLY not in wanted(cluster(roles=["ml"]))


def test_changes_join_and_are_undone():
    first = SettingChange(TRUSTED, None, ["v", "a"], ("a",))
    second = SettingChange(TRUSTED, ["v", "a"], ["v", "a", "b"], ("b",))
    (both,) = joined([first], [second])
    assert both == SettingChange(TRUSTED, None, ["v", "a", "b"], ("a", "b"))
    for current, expected in ((["v", "a", "b"], None), (["v", "x", "a", "b"], ["v", "x"])):
        client = cluster(persistent={TRUSTED: current})
        assert restored(client, [both]) == {TRUSTED: expected}
    assert (
        restored(cluster(persistent={PRIVATE: "false"}), [SettingChange(PRIVATE, None, True)]) == {}
    )  # changed by others


def test_missing_plugins_and_rights_are_named():
    plugins = [{"component": "opensearch-ml"}, {"component": "opensearch-knn"}]
    with pytest.raises(InstallError, match="no opensearch-neural-search: install what is missing"):
        check_plugins(cluster(**{"/_cat/plugins": plugins}))
    info = {"error": {"type": "security_exception", "reason": "no permissions for [cluster:monitor/settings]"}}
    refused = AuthorizationException(403, "security_exception", info)
    with pytest.raises(InstallError, match=r"not allowed \(no permissions .*\); use a user who"):
        check_plugins(cluster(**{"/_cat/plugins": refused}))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "embedded:x", "pipeline", "status"], "embedded engine has no pipelines"),
        (["--url", "http://127.0.0.1:9", "pipeline", "install", "--server", "localhost:80"], "http(s)://host:port"),
        (["--url", "http://127.0.0.1:9", "pipeline", "install", "--server", "http://a", "--fields", ","], "no field"),
        (["--url", "http://127.0.0.1:9", "pipeline", "status"], "the cluster does not answer"),
    ],
)
def test_commands_that_cannot_work(arguments, words):
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code != 0
    assert words in str(outcome.exception)


def test_secrets_are_not_in_what_is_shown():
    from osrerank.server.opensearch.install import Wish
    from osrerank.server.opensearch.ml_commons import connector_of

    assert "s3cret" not in repr(Wish(SERVER, "n", ("text",), token="s3cret"))
    connector = connector_of("n", SERVER, "s3cret")
    assert json.dumps(connector).count("s3cret") == 1
    assert connector["actions"][0]["headers"]["Authorization"] == "Bearer ${credential.token}"


@pytest.mark.parametrize(
    "name", ["", "*", "a,b", "a/b", "../_cluster/settings", "a b", "a?pretty", "_none", ".", "a%2f", "\u00e9"]
)
def test_a_name_that_would_address_something_else_is_refused(name):
    with pytest.raises(ConfigError, match="pipeline's name"):
        Installer(OpenSearch(), name)
