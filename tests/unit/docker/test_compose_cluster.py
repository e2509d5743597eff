"""compose.cluster.yaml beside compose.yaml: two nodes, two workers, the server."""

import json
import subprocess

import pytest

from tests.docker_files import cluster, program, project

NODES = ("opensearch", "opensearch-2")


def test_schema(tmp_path):
    """Compose's own tags are no YAML that others read, so that both files are checked as one."""
    file = tmp_path / "compose.json"
    file.write_text(json.dumps(cluster()))
    command = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_one_more_node_and_the_server_beside_what_there_is():
    assert set(cluster()["services"]) == {*project()["services"], "opensearch-2"}
    assert not cluster()["services"]["serve"].get("profiles")
    assert cluster()["services"]["worker"]["deploy"]["replicas"] == 2
    assert set(cluster()["volumes"]) == {*project()["volumes"], "opensearch-2"}


@pytest.mark.parametrize("name", NODES)
def test_nodes_find_each_other(name):
    environment = cluster()["services"][name]["environment"]
    assert environment["node.name"] == name
    assert "discovery.type" not in environment
    for setting in ("discovery.seed_hosts", "cluster.initial_cluster_manager_nodes"):
        assert environment[setting].split(",") == list(NODES)


def test_nodes_share_no_data_no_port_and_no_name():
    first, second = (cluster()["services"][name] for name in NODES)
    assert first["volumes"][0]["source"] != second["volumes"][0]["source"]
    assert first["volumes"][0]["target"] == second["volumes"][0]["target"]
    assert not second.get("ports")
    assert "aliases" not in (second["networks"]["default"] or {})


def test_nodes_are_the_same_otherwise():
    first, second = (dict(cluster()["services"][name]) for name in NODES)
    for node in (first, second):
        for name in ("volumes", "ports", "networks"):
            node.pop(name, None)
        node["environment"] = {**node["environment"], "node.name": ""}
    assert first == second


def test_services_that_stay_are_as_before():
    for name in ("redis", "worker-gpu"):
        assert cluster()["services"][name] == project()["services"][name]
