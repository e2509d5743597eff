"""What the rerank pipeline needs of an OpenSearch cluster: settings, plugins, rights and names."""

import json
import re

import pytest
from click.testing import CliRunner
from opensearchpy import AuthorizationException, OpenSearch
from opensearchpy.serializer import JSONSerializer

from osrerank.cli import cli
from osrerank.errors import ConfigError, InstallError
from osrerank.server.opensearch.cluster import (
    ML_NODES_ONLY,
    PRIVATE_ALLOWED,
    TRUSTED_PRIVATE_URLS,
    TRUSTED_URLS,
    build_url_pattern,
    check_plugins,
    find_missing_settings,
)
from osrerank.server.opensearch.install import Installer, PipelineSpec
from osrerank.server.opensearch.ml_commons import CallLimits, define_connector

SERVER = "http://10.1.2.3:8088"
THEIRS = "^https://vendor/.*$"
DEFAULTS = {TRUSTED_URLS: [THEIRS], PRIVATE_ALLOWED: "false", ML_NODES_ONLY: "true"}


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


def cluster(*, roles=("data",), defaults=DEFAULTS, persistent=None, transient=None, **answers):
    settings = {"persistent": persistent or {}, "transient": transient or {}, "defaults": defaults}
    known = {
        "/_nodes": {"nodes": {"a": {"roles": ["data"]}, "b": {"roles": list(roles)}}},
        "/_cluster/settings": settings,
    }
    return OpenSearch(transport_class=Answers, answers={**known, **answers})


OURS = build_url_pattern(SERVER)
BOTH = [THEIRS, OURS]
NEEDED = {TRUSTED_URLS: BOTH, PRIVATE_ALLOWED: True, ML_NODES_ONLY: False}
SINCE_3_7 = {**DEFAULTS, TRUSTED_PRIVATE_URLS: []}


@pytest.mark.parametrize(
    ("given", "server", "needed"),
    [
        ({}, SERVER, NEEDED),
        ({"roles": ["ml"]}, SERVER, {TRUSTED_URLS: BOTH, PRIVATE_ALLOWED: True}),  # nodes for models run them
        ({"defaults": SINCE_3_7}, SERVER, {**NEEDED, TRUSTED_PRIVATE_URLS: [OURS]}),
        ({"defaults": {TRUSTED_URLS: [THEIRS]}}, SERVER, {TRUSTED_URLS: BOTH}),  # a version without the other settings
        ({"persistent": {TRUSTED_URLS: [OURS]}}, SERVER, {PRIVATE_ALLOWED: True, ML_NODES_ONLY: False}),
        (
            {"persistent": {TRUSTED_URLS: [r"^http://10\..*$", "("]}},
            SERVER,
            {PRIVATE_ALLOWED: True, ML_NODES_ONLY: False},
        ),
        ({"persistent": {TRUSTED_URLS: ["http://10"]}}, SERVER, {**NEEDED, TRUSTED_URLS: ["http://10", OURS]}),
        ({"persistent": {TRUSTED_URLS: BOTH, PRIVATE_ALLOWED: "true", ML_NODES_ONLY: "false"}}, SERVER, {}),
        (
            {"defaults": SINCE_3_7},
            "https://8.8.8.8",
            {TRUSTED_URLS: [THEIRS, build_url_pattern("https://8.8.8.8")], ML_NODES_ONLY: False},
        ),
    ],
)
def test_missing_cluster_settings_for_a_server_are_listed(given, server, needed):
    assert find_missing_settings(cluster(**given), server).get("persistent", {}) == needed


def test_a_name_that_the_cluster_alone_knows_counts_as_private():
    assert find_missing_settings(cluster(), "http://reranker.invalid:8088")["persistent"][PRIVATE_ALLOWED] is True


def test_a_conflicting_transient_setting_is_set_to_null():
    needed = find_missing_settings(cluster(transient={PRIVATE_ALLOWED: "false", TRUSTED_URLS: BOTH}), SERVER)
    assert needed == {"persistent": {PRIVATE_ALLOWED: True, ML_NODES_ONLY: False}, "transient": {PRIVATE_ALLOWED: None}}


def test_the_trusted_endpoint_expression_matches_only_the_server():
    expression = build_url_pattern("http://10.1.2.3:8088")
    assert re.match(expression, "http://10.1.2.3:8088/v1/rerank")
    for bad_url in ("http://10.1.2.3:80889/v1", "http://10a1.2.3:8088/v1", "http://10.1.2.3:8088.evil/v1"):
        assert not re.match(expression, bad_url)


def test_missing_plugins_and_rights_on_the_cluster_are_named():
    plugins = [{"component": "opensearch-ml"}, {"component": "opensearch-knn"}]
    with pytest.raises(InstallError, match="does not have the plugins opensearch-neural-search: install them"):
        check_plugins(cluster(**{"/_cat/plugins": plugins}))
    info = {"error": {"type": "security_exception", "reason": "no permissions for [cluster:monitor/settings]"}}
    refused = AuthorizationException(403, "security_exception", info)
    with pytest.raises(InstallError, match=r"not allowed to list the plugins \(no permissions .*\): use a user who"):
        check_plugins(cluster(**{"/_cat/plugins": refused}))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "embedded:x", "pipeline", "status"], "embedded engine has no search pipelines"),
        (["--url", "http://127.0.0.1:9", "pipeline", "install", "--server", "localhost:80"], "http(s)://host:port"),
        (["--url", "http://127.0.0.1:9", "pipeline", "install", "--server", "http://a", "--fields", ","], "no field"),
        (
            ["--url", "http://127.0.0.1:9", "pipeline", "install", "--server", "http://me:s3cret@a"],
            "user or a password",
        ),
        (["--url", "http://127.0.0.1:9", "pipeline", "status"], "the cluster does not respond"),
    ],
)
def test_pipeline_commands_that_cannot_work_are_refused(arguments, words):
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code != 0
    assert words in str(outcome.exception)
    assert "s3cret" not in outcome.output + str(outcome.exception)


def test_shown_requests_have_no_secrets():
    assert "s3cret" not in repr(PipelineSpec(SERVER, ("text",), token="s3cret"))
    connector = define_connector("n", SERVER, "s3cret", CallLimits())
    assert json.dumps(connector).count("s3cret") == 1
    assert connector["actions"][0]["headers"]["Authorization"] == "Bearer ${credential.token}"


@pytest.mark.parametrize(
    "name", ["", "*", "a,b", "a/b", "../_cluster/settings", "a b", "a?pretty", "_none", ".", "a%2f", "\u00e9"]
)
def test_a_pipeline_name_with_a_path_or_wildcard_is_refused(name):
    with pytest.raises(ConfigError, match="pipeline's name"):
        Installer(OpenSearch(), name)
