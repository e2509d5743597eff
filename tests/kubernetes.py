"""The chart and the plain manifests of docker/, read as Kubernetes reads them."""

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest
import yaml

from tests.docker_files import DOCKER
from tests.servers import ROOT
from tools.deploy.helm import find_helm

CHART = DOCKER / "chart"
MANIFESTS = DOCKER / "kubernetes"
VERSIONS = ("1.29", "1.37")
KEDA = ROOT / "tests" / "data" / "keda" / "scaledobject.schema.json"
CUSTOM = {"ScaledObject", "ServiceMonitor"}
"""Kinds that Kubernetes itself does not know."""
Object = dict[str, Any]


def objects(text: str) -> list[Object]:
    """The objects of YAML documents."""
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@functools.cache
def plain() -> list[Object]:
    """The objects of the plain manifests."""
    return [
        object_ for file in sorted(MANIFESTS.glob("*.yaml")) for object_ in objects(file.read_text(encoding="utf-8"))
    ]


def of_kind(found: Sequence[Object], kind: str, component: str | None = None) -> list[Object]:
    label = "app.kubernetes.io/component"
    return [one for one in found if one["kind"] == kind and component in (None, one["metadata"]["labels"].get(label))]


def pod(found: Sequence[Object], component: str) -> Object:
    """The template of a component's Pods."""
    (deployment,) = of_kind(found, "Deployment", component)
    template: Object = deployment["spec"]["template"]["spec"]
    return template


def container(found: Sequence[Object], component: str) -> Object:
    (only,) = pod(found, component)["containers"]
    assert isinstance(only, dict)
    return only


def values() -> Object:
    content: Object = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return content


def values_schema() -> Object:
    content: Object = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return content


def check(found: Sequence[Object]) -> None:
    """Validate objects against the schemas of two versions of Kubernetes, unknown fields refused, and KEDA's."""
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: make setup")
    for one in found:
        _check(json.dumps(one, sort_keys=True))


@functools.cache
def _check(text: str) -> None:
    import kubernetes_validate

    content = json.loads(text)
    if content["kind"] == "ScaledObject":
        jsonschema.validate(content, json.loads(KEDA.read_text(encoding="utf-8")))
    elif content["kind"] not in CUSTOM:
        for version in VERSIONS:
            kubernetes_validate.validate(content, version, strict=True)


@pytest.fixture(scope="session")
def helm() -> Iterator[str]:
    """Helm, or a skipped test that says so."""
    try:
        yield find_helm()
    except FileNotFoundError as error:
        pytest.skip(str(error))
