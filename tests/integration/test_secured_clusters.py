"""The roles of docs/operations.md allow every action that a real OpenSearch registers while commands run.

There is no security plugin here. OpenSearch logs each action as a task; those are what the plugin would check.
"""

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opensearchpy import OpenSearch

from osrerank import connect
from osrerank.cli import cli
from tests import servers
from tests.http_server import running
from tests.servers import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

TASK = re.compile(r"register \d+ \[\w+\] \[([^\s\[\]]+(?:\[\w+\])*)\] \[(.*)\]$", re.MULTILINE)
OF_CLUSTER = (
    "indices:data/write/bulk",
    "indices:data/read/scroll",
    "indices:data/read/msearch",
    "indices:data/read/mget",
)
"""Index actions that the security plugin checks against cluster permissions."""
NOT_OURS = re.compile(
    r"internal:|cluster:admin/opensearch/mlinternal/|.*(seq_no|retention_lease|mapping/auto_put)|cluster:admin/opensearch/ml/deploy_model_on_nodes"
)
"""What nodes ask each other for, and what ml-commons does as itself."""


def page() -> str:
    return (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def bodies(path: str) -> dict[str, Any]:
    """The bodies of the page's PUT calls by the last part of their path."""
    matches = re.findall(rf"```\nPUT ({path}\S*)\n(.*?)```", page(), flags=re.DOTALL)
    return {name.rpartition("/")[2]: json.loads(body) for name, body in matches}


def is_allowed(action: str, *roles: str) -> bool:
    role_bodies = [bodies("_plugins/_security/api/roles/")[role] for role in roles]
    cluster = [permission for role in role_bodies for permission in role["cluster_permissions"]]
    index = [
        action for role in role_bodies for entry in role["index_permissions"] for action in entry["allowed_actions"]
    ]
    patterns = (
        cluster if action.startswith("cluster:") or action in OF_CLUSTER else [*index, "indices:data/read/scroll/clear"]
    )
    return any(fnmatchcase(action, pattern) for pattern in patterns)


class Node:
    """An OpenSearch that logs every action."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log, self._read = url, log, log.stat().st_size

    def run(self, *words: str) -> set[str]:
        """Run a command; return the actions that it caused."""
        outcome = CliRunner().invoke(cli, ["--url", self.url, *words], input="y\n", catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        return self.actions()

    def _unread(self) -> str:
        return self._log.read_bytes()[self._read :].decode()

    def actions(self) -> set[str]:
        end = f"end-{self._read}"
        with OpenSearch(self.url) as client:
            client.search(index=end, ignore_unavailable=True)
        wait_until(lambda: end in self._unread())  # the log is written in the background
        text = self._unread()
        self._read += len(text.encode())
        found = {action for action, about in TASK.findall(text) if ".plugins-ml" not in about and end not in about}
        return {one for one in found if not NOT_OURS.match(one) and (not one.endswith("]") or one.endswith("bulk[s]"))}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = servers.opensearch_home()
    if home is None:
        servers.missing("no OpenSearch distribution: set TEST_OPENSEARCH_HOME")
    folder = tmp_path_factory.mktemp("secured")
    tracing = {"logger.org.opensearch.tasks.TaskManager": "TRACE"}
    with servers.start_opensearch(home, folder, settings=tracing) as (url, _process):
        with OpenSearch(url) as client:
            client.cluster.put_settings(body={"transient": {"plugins.ml_commons.native_memory_threshold": 100}})
        yield Node(url, folder / "stdout.log")


@pytest.fixture(scope="module")
def load_actions(node: Node, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The actions of loading an index."""
    file = tmp_path_factory.mktemp("notes") / "notes.jsonl"
    lines = [{"id": f"n{n}", "title": f"note {n}", "text": f"blood pressure is low in {n} hearts"} for n in range(30)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    node.actions()
    return node.run("index", "jsonl", str(file), "--index", "notes")


def check(actions: set[str], *roles: str) -> None:
    assert actions
    assert sorted(action for action in actions if not is_allowed(action, *roles)) == []


def test_the_load_role_allows_loading_an_index(load_actions):
    check(load_actions, "osrerank_load")


def test_the_search_role_allows_search_and_msearch(node, load_actions):
    actions = node.run("search", "low blood pressure", "--index", "notes", "--rerank")
    with connect(node.url) as client:
        client.msearch(body=[{"index": "notes"}, {"query": {"match": {"text": "low"}}}])
    check(actions | node.actions(), "osrerank_search")


def test_the_vectors_role_allows_a_side_index(node, load_actions, no_folder, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))
    for command in ("build", "status", "prune"):
        check(node.run("vectors", command, "--index", "notes"), "osrerank_vectors")
    check(node.run("search", "low blood pressure", "--index", "notes", "--rerank"), "osrerank_search")
    check(node.run("vectors", "drop", "--index", "notes"), "osrerank_vectors")


def test_pipeline_needs_no_right_to_change_settings_that_are_set(node, load_actions):
    with running() as server, OpenSearch(node.url) as client:
        settings = json.loads(
            json.dumps(bodies("_cluster/")["settings"]).replace(
                "http://reranker:8088", re.escape(server).replace("\\", "\\\\")
            )
        )
        assert client.cluster.put_settings(body=settings)["acknowledged"]
        node.actions()
        shown = CliRunner().invoke(
            cli, ["--url", node.url, "pipeline", "install", "--fields", "text", "--server", server, "--dry-run"]
        )
        assert (shown.exit_code, "PUT _cluster/settings" in shown.output) == (0, False)
        for words in (("install", "--server", server, "--index", "notes", "--template", "notes-search"), ("status",)):
            actions = node.run("pipeline", *words)
            assert "cluster:admin/settings/update" not in actions
            check(without_system_indexes(actions), "osrerank_setup")
        ext = {"rerank": {"query_context": {"query_text": "low blood pressure"}}}
        body = {"query": {"match": {"text": "low blood pressure"}}, "ext": ext}
        with connect(node.url) as search:
            assert search.search(index="notes", body=body, search_pipeline="osrerank")["hits"]["hits"]
        check(node.actions(), "osrerank_search", "osrerank_pipeline_search")
        check(without_system_indexes(node.run("pipeline", "remove")), "osrerank_setup")


def without_system_indexes(actions: set[str]) -> set[str]:
    """Leave out all data actions, some index actions and settings updates: ml-commons does these as itself."""
    expected_prefixes = (
        "indices:data/",
        *(f"indices:admin/{name}" for name in ("create", "mapping", "refresh", "delete")),
    )
    return {
        action
        for action in actions
        if not action.startswith(expected_prefixes) and action != "cluster:admin/settings/update"
    }
