import json

import pytest

from tests.docker_files import check_schema, cluster

NODES = ("opensearch", "opensearch-2")


@pytest.mark.long
def test_schema(tmp_path):
    """Compose's own tags are no YAML that others read, so that both files are checked as one."""
    file = tmp_path / "compose.json"
    file.write_text(json.dumps(cluster()))
    check_schema(file)


@pytest.mark.long
@pytest.mark.parametrize("name", NODES)
def test_nodes_find_each_other(name):
    environment = cluster()["services"][name]["environment"]
    assert environment["node.name"] == name
    assert "discovery.type" not in environment
    for setting in ("discovery.seed_hosts", "cluster.initial_cluster_manager_nodes"):
        assert environment[setting].split(",") == list(NODES)
