"""The chart as Helm renders it; `make helm` brings Helm, and without it these tests are skipped."""

import subprocess

import pytest

from osrerank._removed import REMOVED
from tests import kubernetes
from tests.kubernetes import CHART, MANIFESTS, container, helm, objects, pod
from tools.deploy.manifests import manifests, render

__all__ = ["helm"]

pytestmark = [pytest.mark.usefixtures("helm"), pytest.mark.slow]

GPU = ("worker.gpu.enabled=true", "worker.gpu.runtimeClassName=nvidia")
NO_KEDA = ("autoscaling.enabled=false",)
OWN_SECRETS = ("secrets.redisUrl.secretName=cache", "secrets.redisUrl.key=url", "secrets.vectorsKey.secretName=vectors")
TLS = ("redis.tlsSecretName=redis-tls",)
GUARDED = (
    "networkPolicy.enabled=true",
    "serviceMonitor.enabled=true",
    "networkPolicy.redisTo[0].podSelector.matchLabels.app=redis",
    "networkPolicy.serverFrom[0].namespaceSelector.matchLabels.name=search",
)
COMBINATIONS = {
    "default": (),
    "gpu": GPU,
    "no-keda": NO_KEDA,
    "own-secrets": OWN_SECRETS,
    "redis-tls": TLS,
    "guarded": GUARDED,
    "all": (*GPU, *NO_KEDA, *OWN_SECRETS, *TLS, *GUARDED),
}


def rendered(values=()):
    return objects(render(*(part for value in values for part in ("--set", value))))


def test_plain_manifests_equal_the_charts_defaults():
    """`make manifests` renders them anew."""
    assert {file.name: file.read_text(encoding="utf-8") for file in MANIFESTS.glob("*.yaml")} == manifests()


@pytest.mark.parametrize("name", COMBINATIONS)
def test_charts_of_combined_values_are_valid(name):
    found = rendered(COMBINATIONS[name])
    kubernetes.check(found)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in found]
    assert len(names) == len(set(names))
    assert all(manifest["metadata"]["namespace"] == "osrerank" for manifest in found)


def test_helm_lint_finds_no_fault(helm):
    linted = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("server.timeoutSeconds=58", "server.terminationGracePeriodSeconds must be more than 5 s above"),
        ("autoscaling.minReplicas=9", "autoscaling.minReplicas is above"),
        ("secrets.redisUrl.secretName=", "workers need the URL of a Redis"),
        ("server.replica=3", "additional properties 'replica' not allowed"),
        ("worker.resources.limits.cpu=null", "missing property 'cpu'"),
        ("worker.env.OSRERANK_SIGNING_KEY=secret", "invalid propertyName 'OSRERANK_SIGNING_KEY'"),
    ],
)
def test_contradicting_values_of_the_chart_are_refused(value, said):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered([value])
    assert said in caught.value.stderr


@pytest.mark.parametrize("value", [name for name in REMOVED if name.startswith("secrets.")])
def test_a_removed_value_of_the_chart_names_its_successor(value):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered([f"{value}.secretName=osrerank"])
    assert f"{value} is gone; {REMOVED[value]}" in caught.value.stderr


def test_gpu_workers_of_the_chart_have_a_gpu_and_torch():
    found = rendered(GPU)
    worker, server = container(found, "worker"), container(found, "server")
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert worker["image"] == "osrerank:gpu"
    assert {"name": "OSRERANK_BACKEND", "value": "torch"} in worker["env"]
    assert pod(found, "worker")["runtimeClassName"] == "nvidia"
    assert server["image"] == "osrerank:cpu"
    assert "nvidia.com/gpu" not in server["resources"]["limits"]


def test_the_chart_uses_the_named_secrets():
    worker_pod = pod(rendered((*OWN_SECRETS, *TLS)), "worker")
    volumes = {volume["name"]: volume for volume in worker_pod["volumes"]}
    sources = [source["secret"] for source in volumes["secrets"]["projected"]["sources"]]
    assert [(source["name"], source["items"]) for source in sources] == [
        ("cache", [{"key": "url", "path": "osrerank_redis_url"}]),
        ("osrerank", [{"key": "signing-key", "path": "osrerank_signing_key"}]),
        ("vectors", [{"key": "vectors-key", "path": "osrerank_vectors_key"}]),
    ]
    assert volumes["redis-tls"]["secret"]["secretName"] == "redis-tls"
    mounted = [mount for mount in worker_pod["containers"][0]["volumeMounts"] if mount["name"] == "redis-tls"]
    assert mounted == [{"name": "redis-tls", "mountPath": "/run/tls", "readOnly": True}]


def test_an_image_digest_overrides_the_tag():
    digest = "sha256:" + "0" * 64
    assert container(rendered([f"image.digest={digest}"]), "worker")["image"] == f"osrerank@{digest}"
