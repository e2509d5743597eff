"""The plain manifests and the chart's values, without Helm: valid, bounded, and without rights that are not needed."""

import re

import jsonschema
import pytest

from osrerank._version import __version__
from osrerank.scoring.remote.messages import VERSION
from osrerank.settings import PREFIX, Settings
from tests import kubernetes
from tests.docker_files import stages
from tests.kubernetes import CHART, container, of_kind, plain, pod, values, values_schema
from tests.servers import ROOT

COMPONENTS = ("server", "worker")
SCORING_S = 30
"""Most time of a request, or of a chunk that a stopping worker finishes."""


def test_manifests_and_values_are_valid_and_the_schema_names_all_values():
    kubernetes.check(plain())
    jsonschema.Draft202012Validator.check_schema(values_schema())
    jsonschema.validate(values(), values_schema())

    def names(schema, given):
        assert set(schema["properties"]) - {"global"} == set(given)
        for name, value in given.items():
            if schema["properties"][name].get("properties") is not None:
                names(schema["properties"][name], value)

    names(values_schema(), values())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("server.replicaCount", 3),
        ("image.digest", "latest"),
        ("autoscaling.minReplicas", 0),
        ("worker.terminationGracePeriodSeconds", 5),
        ("worker.env", {"OSRERANK_SIGNING_KEY": "secret"}),
        ("server.env", {"OSRERANK_REDIS_URL": "redis://:secret@redis"}),
        ("secrets.redisUrl", {"secretName": "osrerank", "value": "secret"}),
    ],
)
def test_the_charts_schema_refuses_values_that_cannot_work(path, value):
    chart_values = values()
    parent, _, name = path.partition(".")
    chart_values[parent][name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(chart_values, values_schema())


def test_chart_has_the_version_of_the_program_and_its_page_every_group_of_values():
    chart = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^(?:appVersion|version): (.*)$", chart, flags=re.MULTILINE) == [__version__] * 2
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert [name for name in values() if f"`{name}" not in page] == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_have_no_rights_that_they_do_not_need(component):
    """What the Pod Security Standard "restricted" asks for, and more."""
    template, pod_container = pod(plain(), component), container(plain(), component)
    user, _, group = (stages()["runtime"].last("USER") or "").partition(":")
    who = {"runAsNonRoot": True, "runAsUser": int(user), "runAsGroup": int(group), "fsGroup": int(group)}
    assert template["securityContext"] == {**who, "seccompProfile": {"type": "RuntimeDefault"}}
    rights = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert pod_container["securityContext"] == rights
    assert template["automountServiceAccountToken"] is False
    assert template["enableServiceLinks"] is False
    (account,) = of_kind(plain(), "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(template)


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_can_write_only_to_temporary_folders(component):
    mounts = {mount["name"]: mount for mount in container(plain(), component)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(plain(), component)["volumes"]}
    assert set(mounts) == set(volumes)
    written = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert {mounts[name]["mountPath"] for name in written} == {"/tmp", "/var/cache/huggingface", "/var/lib/osrerank"}
    assert all("sizeLimit" in volumes[name]["emptyDir"] for name in written)


@pytest.mark.parametrize("component", COMPONENTS)
def test_secrets_are_files_that_settings_read_and_none_is_in_the_environment(component, tmp_path, monkeypatch):
    (secrets,) = [volume["projected"] for volume in pod(plain(), component)["volumes"] if volume["name"] == "secrets"]
    paths = [item["path"] for source in secrets["sources"] for item in source["secret"]["items"]]
    assert set(paths) <= {f"{PREFIX}{field}".lower() for field in Settings.model_fields}
    assert ("osrerank_server_token" in paths) == (component == "server")
    for path in paths:
        (tmp_path / path).write_text("redis://redis:6379/0" if path.endswith("url") else "a-secret-of-twenty-two")
    for variable in container(plain(), component)["env"]:
        value = variable.get("value", "2")
        monkeypatch.setenv(variable["name"], str(tmp_path) if value.startswith("/run/secrets") else value)
    settings = Settings.load()
    assert settings.broker() == "redis://redis:6379/0"
    assert settings.signing_key is not None
    names = [variable["name"] for variable in container(plain(), component)["env"]]
    assert [name for name in names if re.search(r"PASSWORD|TOKEN|SECRET|KEY|_URL", name)] == ["OSRERANK_SECRETS_DIR"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_are_bounded_probed_and_given_the_time_to_finish(component):
    pod_container = container(plain(), component)
    assert set(pod_container["resources"]["limits"]) == {"cpu", "memory"}
    ports = {port["name"] for port in pod_container["ports"]}
    paths = {}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert pod_container[name]["httpGet"]["port"] in ports
        paths[name] = pod_container[name]["httpGet"]["path"]
    assert paths == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}
    pause_s = int(pod_container["lifecycle"]["preStop"]["exec"]["command"][-1]) if "lifecycle" in pod_container else 0
    assert pod(plain(), component)["terminationGracePeriodSeconds"] > pause_s + SCORING_S


def test_workers_have_the_threads_of_their_cores_and_are_scaled_down_to_one():
    (threads,) = [
        variable for variable in container(plain(), "worker")["env"] if variable["name"] == "OSRERANK_THREADS"
    ]
    assert threads["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
    (scaled,) = of_kind(plain(), "ScaledObject")
    (deployment,) = of_kind(plain(), "Deployment", "worker")
    (service,) = of_kind(plain(), "Service", "worker")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["minReplicaCount"] >= 1
    assert "replicas" not in deployment["spec"]  # an upgrade would set KEDA's number back
    (trigger,) = scaled["spec"]["triggers"]
    port = service["spec"]["ports"][0]["port"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
    assert trigger["metadata"]["url"] == f"http://{host}:{port}/metrics"


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_kubernetes_selector_matches_only_its_own_pods(component):
    (deployment,) = of_kind(plain(), "Deployment", component)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (service,) = of_kind(plain(), "Service", component)
    (budget,) = of_kind(plain(), "PodDisruptionBudget", component)
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        budget["spec"]["selector"]["matchLabels"],
    ):
        assert selector["app.kubernetes.io/component"] == component
        assert selector.items() <= labels.items()


@pytest.mark.parametrize("name", ["deploy", "workers"])
def test_the_pages_name_the_queues_of_this_version(name):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert set(re.findall(r"osrerank:\d+:queue", page)) == {f"osrerank:{VERSION}:queue"}
