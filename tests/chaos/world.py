"""All that a search may need, each a process, with a link of its own between any two of them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests import servers
from tests.chaos.schedule import Event
from tests.rerank_server import server_file
from tests.toxics import Proxies
from tests.waiting import wait_until
from tests.workers import PATHS, TINY, WorkerGroup

INDEX, NODES = "motion", 2
KEY = "the-key-of-both-sides-in-motion"
HEALTH = "http://127.0.0.1:{port}/_cluster/health?timeout=1s"
LINKS = ("os-0", "os-1", "client-redis", "worker-redis", "server-redis", "client-server", "node-0", "node-1")
"""Clients to each node, to Redis and to the server; workers and the server to Redis; nodes to each other."""


class World:
    """Nodes, Redis, workers, a rerank server, and the links between them.

    Args:
        folder: for their files.
        workers: how many.
    """

    def __init__(self, folder: Path, *, workers: int) -> None:
        self.folder = folder
        self.worker_count = workers
        self.stack = ExitStack()
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.ports = {name: servers.free_port() for name in ("redis", "server", "http-0", "http-1")}
        self.transport = [servers.free_port() for _ in range(NODES)]
        self.hanging: list[subprocess.Popen[bytes]] = []
        self.server: subprocess.Popen[bytes]
        self.redis: subprocess.Popen[bytes]
        self.workers: WorkerGroup

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.stack:
            self.proxies = self.stack.enter_context(Proxies())
            self._start_nodes()
            self._start_redis()
            for name in ("client-redis", "worker-redis", "server-redis"):
                self.proxies.open(name, self.ports["redis"])
            self.proxies.open("client-server", self.ports["server"])
            self._start_server()
            self.stack.callback(lambda: self._end(self.server))
            options = ("--threads", "1", "--backend", "onnx")
            broker = self.redis_url("worker-redis")
            self.workers = WorkerGroup(broker, self.folder / "workers", options=options, key=KEY)
            self.stack.callback(self.workers.stop)
            self.stack.callback(self._let_go_on)
            self.workers.start(self.worker_count)
            self._wait_for(f"http://127.0.0.1:{self.ports['server']}/ready")
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        for name in LINKS:
            self.proxies.infect(name, None)
        self.stack.close()

    def redis_url(self, link: str) -> str:
        return f"redis://127.0.0.1:{self.proxies.links[link].port}/0"

    @property
    def search_url(self) -> str:
        """The URL of all nodes, through the links."""
        ports = (self.proxies.links[f"os-{node}"].port for node in range(NODES))
        return ",".join(f"http://127.0.0.1:{port}" for port in ports)

    @property
    def direct_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http-0']}"

    def environment(self) -> dict[str, str]:
        """Return the environment of a client process."""
        server = f"http://127.0.0.1:{self.proxies.links['client-server'].port}"
        ours = {
            "OSRERANK_BROKER_URL": self.redis_url("client-redis"),
            "OSRERANK_SIGNING_KEY": KEY,
            "OSRERANK_SETTINGS_FILE": str(server_file(self.folder, server, dialect="osrerank")),
            "OSRERANK_THREADS": "1",
        }
        return {"PYTHONWARNINGS": "ignore", **os.environ, **ours, "PYTHONPATH": PATHS}

    def perform(self, event: Event) -> None:
        """Do what an event says; one that cannot be done any more does nothing."""
        if event.act in ("toxic", "heal"):
            self.proxies.infect(event.target, event.toxic)
        else:
            getattr(self, f"_{event.act}_{event.target}")(event.number)

    def may_end(self, event: Event) -> bool:
        """Return whether a node may be killed: the other one is back and has a copy of all; any may be started."""
        if event.act != "kill":
            return True
        port = self.ports[f"http-{1 - event.number}"]
        with contextlib.suppress(OSError), urllib.request.urlopen(HEALTH.format(port=port), timeout=5) as answer:
            return bool(json.loads(answer.read())["status"] == "green")
        return False

    def heal(self) -> None:
        """Let whatever hangs go on, and start what was killed."""
        for name in LINKS:
            self.proxies.infect(name, None)
        self._let_go_on()
        for node in range(len(self.nodes)):
            self._start_node(node)
        self._start_server()

    def _kill_worker(self, number: int) -> None:
        running = self.workers.processes
        if running:
            self.workers.kill(running[number % len(running)])

    def _start_worker(self, _number: int) -> None:
        if len(self.workers.processes) < self.worker_count:
            self.workers.start(1, wait=False)

    def _hang_worker(self, number: int) -> None:
        running = self.workers.processes
        if running:
            self._hang(running[number % len(running)])

    def _continue_worker(self, _number: int) -> None:
        self._let_go_on(among=self.workers.processes)

    def _kill_redis(self, _number: int) -> None:
        self.redis.kill()
        self.redis.wait()

    def _start_redis(self, _number: int = 0) -> None:
        folder, port = self.folder / "redis", self.ports["redis"]
        started = servers.start_redis(servers.redis_binary(), folder, port=port)
        _, self.redis = self.stack.enter_context(started)

    def _kill_server(self, _number: int) -> None:
        self.server.kill()
        self.server.wait()

    def _start_server(self, _number: int = 0) -> None:
        if hasattr(self, "server") and self.server.poll() is None:
            return
        model = ["--model", TINY, "--backend", "onnx", "--redis-url", self.redis_url("server-redis")]
        command = [sys.executable, "-m", "osrerank", *model, "serve", "--port", str(self.ports["server"])]
        environment = {"PYTHONWARNINGS": "ignore", **os.environ, "PYTHONPATH": PATHS, "OSRERANK_THREADS": "1"}
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=servers.ROOT)

    def _hang_server(self, _number: int) -> None:
        self._hang(self.server)

    def _continue_server(self, _number: int) -> None:
        self._let_go_on(among=[self.server])

    def _kill_node(self, number: int) -> None:
        self.nodes[number].kill()
        self.nodes[number].wait()

    def _start_node(self, number: int) -> None:
        if number < len(self.nodes) and self.nodes[number].poll() is None:
            return
        home = servers.opensearch_home()
        assert home is not None
        started = servers.launch_opensearch(
            home,
            self.folder / f"node-{number}",
            port=self.ports[f"http-{number}"],
            settings=self._settings(number),
            heap="640m",
        )
        self.nodes[number:] = [started, *self.nodes[number + 1 :]]

    def _settings(self, number: int) -> dict[str, str]:
        seeds = ",".join(f"127.0.0.1:{self.proxies.links[f'node-{number}'].port}" for number in range(NODES))
        return {
            "discovery.type": "zen",
            "node.name": f"node-{number}",
            "cluster.name": "motion",
            "transport.port": str(self.transport[number]),
            "transport.publish_port": str(self.proxies.links[f"node-{number}"].port),
            "discovery.seed_hosts": seeds,
            "cluster.initial_cluster_manager_nodes": "node-0",
            "cluster.fault_detection.follower_check.timeout": "5s",
            "cluster.fault_detection.leader_check.timeout": "5s",
        }

    def _start_nodes(self) -> None:
        self.stack.callback(lambda: [self._end(node) for node in self.nodes])
        for number in range(NODES):
            self.proxies.open(f"node-{number}", self.transport[number])
        for number in range(NODES):
            self.proxies.open(f"os-{number}", self.ports[f"http-{number}"])
            self._start_node(number)
            port = self.ports[f"http-{number}"]
            self._wait_for(f"http://127.0.0.1:{port}/_cluster/health?wait_for_nodes={number + 1}")

    def _wait_for(self, url: str) -> None:
        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
            return False

        wait_until(answers, servers.START_TIMEOUT_S, lambda: f"somebody answers at {url}")

    def _hang(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGSTOP)
        self.hanging.append(process)

    def _let_go_on(self, *, among: list[subprocess.Popen[bytes]] | None = None) -> None:
        for process in [one for one in self.hanging if among is None or one in among or one.poll() is not None]:
            process.send_signal(signal.SIGCONT)
            self.hanging.remove(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """Stop a process; one that does not stop in time is killed."""
        process.send_signal(signal.SIGCONT)
        process.terminate()
        killer = threading.Timer(20, process.kill)
        killer.start()
        process.wait()
        killer.cancel()
