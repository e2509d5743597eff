"""The Compose files in docker/: schema, limits, rights, secrets and ports."""

import json
import re
import subprocess

import pytest

from osrerank.settings import PREFIX, Settings
from tests.docker_files import COMPOSE, DOCKER, check_schema, cluster, compose, inherited, project
from tests.servers import ROOT

SERVICES = sorted(project()["services"])
OURS = ("serve", "worker", "worker-gpu")
NODES = ("opensearch", "opensearch-2")


@pytest.fixture(params=SERVICES)
def service(request):
    return project()["services"][request.param]


@pytest.mark.long
def test_the_compose_file_fits_the_compose_schema():
    check_schema(COMPOSE)


def test_opensearch_is_the_version_that_the_tests_run():
    image = project()["services"]["opensearch"]["image"]
    assert f'"{image}"' in (ROOT / "tests" / "servers.py").read_text(encoding="utf-8")


def test_every_compose_service_is_pinned_and_has_a_health_check(service):
    assert "build" in service or re.fullmatch(r"[\w/]+:\d+\.\d+\.\d+[\w.-]*", service["image"])
    if "healthcheck" in service:
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    else:
        assert inherited(service["build"]["target"], "HEALTHCHECK") is not None


def test_every_compose_service_has_limits_and_restarts(service):
    assert int(service["deploy"]["resources"]["limits"]["memory"]) > 0
    assert service["restart"] == "unless-stopped"
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"]["max-size"]
    assert service["stop_grace_period"]


def test_ports_are_published_on_loopback_only_and_no_secret_is_in_the_environment(service):
    assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", []))
    secret = re.compile(r"PASSWORD|TOKEN|SECRET|KEY|_URL", re.IGNORECASE)
    assert [name for name in service.get("environment", {}) if secret.search(name)] in ([], ["OSRERANK_SECRETS_DIR"])


def test_scaled_services_publish_no_port_and_have_no_container_name():
    for name in ("worker", "worker-gpu"):
        assert not {"ports", "container_name", "hostname"} & set(project()["services"][name])


@pytest.mark.parametrize("name", [*OURS, "redis"])
def test_services_have_a_read_only_file_system_and_no_capabilities(name):
    found = project()["services"][name]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert any(folder.startswith("/tmp") for folder in found["tmpfs"])


@pytest.mark.parametrize("name", OURS)
def test_environment_and_secrets_of_services_are_valid_settings(name, monkeypatch, tmp_path):
    names = {secret["source"] for secret in project()["services"][name]["secrets"]}
    assert names <= {f"{PREFIX}{field}".lower() for field in Settings.model_fields}
    for variable, value in project()["services"][name]["environment"].items():
        monkeypatch.setenv(variable, str(tmp_path) if variable == "OSRERANK_SECRETS_DIR" else value)
    Settings.load()


@pytest.mark.long
def test_secrets_are_files_that_git_ignores():
    for secret in project()["secrets"].values():
        assert subprocess.run(["git", "check-ignore", "-q", secret["file"]], cwd=ROOT, check=False).returncode == 0


@pytest.mark.long
def test_worker_threads_match_the_cpu_limit():
    assert project()["services"]["worker"]["environment"]["OSRERANK_THREADS"] == "2"
    scaled = compose("config", "worker", environment={"WORKER_CPUS": "5"})
    assert 'OSRERANK_THREADS: "5"' in scaled
    assert "cpus: 5" in scaled


@pytest.mark.long
def test_the_documented_service_for_a_second_gpu_is_valid(tmp_path):
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(services:.*?)```", page, flags=re.DOTALL)
    file = tmp_path / "gpus.yaml"
    file.write_text(block.replace("compose.yaml", str(COMPOSE)))
    services = json.loads(compose("--file", str(file), "config", "--format", "json"))["services"]
    (device,) = services["worker-gpu-1"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["device_ids"], device.get("count")) == (["1"], None)
    assert services["worker-gpu-1"]["read_only"] is True


def test_the_example_env_file_has_every_variable_with_its_default():
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE.read_text(encoding="utf-8")))
    example = (DOCKER / ".env.example").read_text(encoding="utf-8")
    assert dict(re.findall(r"^(\w+)=(.*)$", example, flags=re.MULTILINE)) == used


@pytest.mark.long
def test_the_cluster_compose_file_fits_the_compose_schema(tmp_path):
    """Compose's own tags are no YAML that others read, so that both files are checked as one."""
    file = tmp_path / "compose.json"
    file.write_text(json.dumps(cluster()))
    check_schema(file)


@pytest.mark.long
@pytest.mark.parametrize("name", NODES)
def test_the_nodes_of_the_compose_cluster_know_each_other(name):
    environment = cluster()["services"][name]["environment"]
    assert environment["node.name"] == name
    assert "discovery.type" not in environment
    for setting in ("discovery.seed_hosts", "cluster.initial_cluster_manager_nodes"):
        assert environment[setting].split(",") == list(NODES)
