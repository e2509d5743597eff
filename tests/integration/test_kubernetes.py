"""The manifests' Pods as processes of this machine: their commands, probes and end."""

import contextlib
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.containers import Service
from tests.kubernetes import container, of_kind, plain, pod
from tests.servers import free_port
from tests.workers import PATHS

pytestmark = pytest.mark.integration


class Process(Service):
    """A component's container as a process: its arguments and environment, with other ports and another home."""

    def __init__(self, component: str, secrets: Path, folder: Path) -> None:
        found = container(plain(), component)
        self.ports = {port["name"]: free_port() for port in found["ports"]}
        self._numbers = {port["containerPort"]: self.ports[port["name"]] for port in found["ports"]}
        self._probes = {name: found[name]["httpGet"] for name in ("startupProbe", "readinessProbe")}
        program, *arguments = [self._here(word) for word in found["args"]]
        assert program == "osrerank"
        values = {one["name"]: one.get("value", "2") for one in found["env"]}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OSRERANK_")}
        environment = {**clean, **values, "PYTHONPATH": PATHS, "HOME": str(folder)}
        environment |= {"OSRERANK_SECRETS_DIR": str(secrets), "OSRERANK_VECTORS_FOLDER": str(folder / component)}
        command = [sys.executable, "-m", "osrerank", *arguments]
        grace_s = pod(plain(), component)["terminationGracePeriodSeconds"]
        super().__init__(command, environment, folder / f"{component}.log", grace_s)

    def _here(self, word: str) -> str:
        return re.sub(r"\d{4}$", lambda found: str(self._numbers.get(int(found[0]), found[0])), word)

    def passes(self, probe: str) -> bool:
        get = self._probes[probe]
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.ports[get['port']]}{get['path']}", timeout=5))
        return False

    def wait_for(self, probe: str) -> None:
        self.wait_until(lambda: self.passes(probe))


def metric(port: int, name: str) -> float:
    """A metric's value, read from the page as KEDA's format `prometheus` reads it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return value


@pytest.mark.slow
def test_pods_start_become_ready_and_stop(broker, tmp_path):
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, text in (("redis_url", broker), ("workers_key", "k" * 32), ("server_token", "t" * 32)):
        (secrets / f"osrerank_{name}").write_text(text)
    (scaled,) = of_kind(plain(), "ScaledObject")
    with Process("server", secrets, tmp_path) as server, contextlib.ExitStack() as stack:
        server.wait_for("startupProbe")
        assert not server.passes("readinessProbe")  # there is no worker yet
        worker = stack.enter_context(Process("worker", secrets, tmp_path))
        worker.wait_for("startupProbe")
        worker.wait_for("readinessProbe")
        server.wait_for("readinessProbe")
        assert metric(worker.ports["metrics"], scaled["spec"]["triggers"][0]["metadata"]["valueLocation"]) == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.ports['http']}/metrics", timeout=5)
        assert server.stop() == 0
        assert worker.stop() == 0
