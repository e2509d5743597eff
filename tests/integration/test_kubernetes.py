"""The manifests' Pods as processes of this machine: their commands, probes and end; and the queue that KEDA sees."""

import contextlib
import os
import re
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from osrerank.errors import OsrerankError
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.types import Deadline
from tests.containers import Service
from tests.kubernetes import container, of_kind, plain, pod
from tests.servers import ROOT, free_port
from tests.waiting import wait_until
from tests.workers import PATHS, STAND_IN, worker_group

pytestmark = pytest.mark.integration

CHUNKS = 6


class Process(Service):
    """A component's container as a process: its arguments and environment, with other ports and another home."""

    def __init__(self, component: str, secrets: Path, folder: Path) -> None:
        pod_container = container(plain(), component)
        self.ports = {port["name"]: free_port() for port in pod_container["ports"]}
        self._numbers = {port["containerPort"]: self.ports[port["name"]] for port in pod_container["ports"]}
        self._probes = {name: pod_container[name]["httpGet"] for name in ("startupProbe", "readinessProbe")}
        program, *arguments = [self._here(word) for word in pod_container["args"]]
        assert program == "osrerank"
        values = {variable["name"]: variable.get("value", "2") for variable in pod_container["env"]}
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
    for name, text in (("redis_url", broker), ("signing_key", "k" * 32), ("server_token", "t" * 32)):
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


def documented_trigger() -> dict[str, str]:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(autoscaling:.*?)```", page, flags=re.DOTALL)
    (trigger,) = yaml.safe_load(block)["autoscaling"]["triggers"]
    assert trigger["type"] == "redis"
    found: dict[str, str] = trigger["metadata"]
    return found


@pytest.mark.slow
def test_scaler_sees_the_chunks_that_celery_has_in_redis(broker, tmp_path):
    """The only lists of tasks are the queues that the page names, and the workers' metric is their length."""
    port, metadata = free_port(), of_kind(plain(), "ScaledObject")[0]["spec"]["triggers"][0]["metadata"]
    slow = ("--seconds-per-pair", "0.06", "--tasks", "1")
    environment = {"OSRERANK_METRICS_PORT": str(port)}
    with worker_group(
        broker, tmp_path, model=STAND_IN, module="tests.workers", options=slow, environment=environment
    ) as group:
        scorer, redis = RemoteScorer(broker, STAND_IN, queue_chunks=64), connect(broker)

        def ask() -> None:
            with contextlib.suppress(OsrerankError):
                scorer.score("q", ["d"] * 100, [(n,) for n in range(100)], deadline=Deadline.after_ms(60_000))

        threads = [threading.Thread(target=ask) for _ in range(CHUNKS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: metric(port, metadata["valueLocation"]) >= CHUNKS - 2)
        lists = [key.decode() for key in redis.scan_iter(_type="list")]
        (key,) = [name for name in lists if ":replies:" not in name]
        before, shown, after = redis.llen(key), metric(port, metadata["valueLocation"]), redis.llen(key)
        assert min(before, after) <= shown <= max(before, after)  # a worker may fetch a chunk meanwhile
        assert after >= CHUNKS - 2  # one is scored, one fetched in advance
        pattern = documented_trigger()["listName"].replace("osrerank/e5-small", STAND_IN)
        assert re.fullmatch(pattern.replace("0123456789ab", "[0-9a-f]{12}"), key)
        assert redis.exists(f"_kombu.binding.{key}")
        for process in list(group.processes):
            group.kill(process)
        for thread in threads:
            thread.join(30)
        scorer.close()
        redis.close()
