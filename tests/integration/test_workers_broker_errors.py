"""Workers and clients while the broker answers with errors: a worker stays, says why it is not ready, and goes on."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ReadOnlyError

from osrerank.errors import WorkerError
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.worker_registry import queue_name
from osrerank.types import Scores
from tests import servers
from tests.toxics import Proxies, Toxic
from tests.unit.osrerank_workers.test_probes import asked
from tests.waiting import wait_until
from tests.workers import STAND_IN, WorkerGroup, worker_group

pytestmark = pytest.mark.integration

QUEUE = queue_name(STAND_IN, f"{STAND_IN}/length")
HUNDRED = (["q"] * 100, [(n,) for n in range(100)])


class Loading(socketserver.BaseRequestHandler):
    """A Redis that loads its data for ever."""

    def handle(self) -> None:
        while self.request.recv(65_536):
            self.request.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")


class LoadingServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@dataclass(frozen=True)
class Brokers:
    """A broker behind a proxy, what changes it, and a worker that uses it.

    Attributes:
        admin: a client of the broker, not through the proxy.
        proxies: hold the link ``broker``.
        cluster_port: of a node of an empty Redis Cluster.
        loading_port: of a server that says that it loads its data.
        folder: the broker's own.
        probes: the worker's port.
        group: the worker.
    """

    admin: Any
    proxies: Proxies
    cluster_port: int
    loading_port: int
    folder: Path
    probes: int
    group: WorkerGroup

    @property
    def reason(self) -> str:
        return str(asked(self.probes, "/ready")[1]["reason"])

    def lead_to(self, port: int) -> None:
        """Let the proxy lead somewhere else."""
        self.proxies.links["broker"].target = port
        self.proxies.infect("broker", Toxic("reset"))
        self.proxies.infect("broker", None)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("broker-errors")
    binary, probes = servers.redis_binary(), servers.free_port()
    group_options = {"model": STAND_IN, "module": "tests.workers", "options": ("--seconds-per-pair", "0.001")}
    with (
        servers.start_redis(binary, folder / "redis") as (url, _),
        servers.start_redis(binary, folder / "cluster", options=("--cluster-enabled", "yes")) as (cluster, _),
        LoadingServer(("127.0.0.1", 0), Loading) as loading,
        Proxies() as proxies,
        connect(url) as admin,
    ):
        threading.Thread(target=loading.serve_forever, daemon=True).start()
        port = proxies.open("broker", port_of(url))
        environment = {"OSRERANK_PROBE_PORT": str(probes)}
        with worker_group(
            f"redis://127.0.0.1:{port}/0", folder / "workers", environment=environment, **group_options
        ) as group:
            yield Brokers(admin, proxies, port_of(cluster), loading.server_address[1], folder / "redis", probes, group)
            loading.shutdown()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])


def demote(brokers: Brokers) -> None:
    brokers.admin.replicaof("127.0.0.1", 1)


def promote(brokers: Brokers) -> None:
    brokers.admin.replicaof("NO", "ONE")


def refuse_stale_reads(brokers: Brokers) -> None:
    brokers.admin.config_set("replica-serve-stale-data", "no")
    demote(brokers)


def allow_stale_reads(brokers: Brokers) -> None:
    promote(brokers)
    brokers.admin.config_set("replica-serve-stale-data", "yes")


def replace_queue(brokers: Brokers) -> None:
    brokers.admin.delete(QUEUE)
    brokers.admin.set(QUEUE, "no list")


def fail_to_save(brokers: Brokers) -> None:
    brokers.admin.config_set("save", "3600 1")
    brokers.admin.config_set("dbfilename", "dump.rdb")
    (brokers.folder / "dump.rdb").mkdir()
    (brokers.folder / "dump.rdb" / "in-the-way").touch()
    brokers.admin.bgsave()


def save_again(brokers: Brokers) -> None:
    brokers.admin.config_set("save", "")
    (brokers.folder / "dump.rdb" / "in-the-way").unlink()
    (brokers.folder / "dump.rdb").rmdir()


def ask_for_password(brokers: Brokers) -> None:
    brokers.admin.config_set("requirepass", "a-new-one")
    brokers.admin.execute_command("CLIENT", "KILL", "TYPE", "normal")


def ask_for_none(brokers: Brokers) -> None:
    brokers.admin.config_set("requirepass", "")


def forbid(command: str) -> Callable[[Brokers], object]:
    return lambda brokers: brokers.admin.execute_command("ACL", "SETUSER", "default", f"-{command}")


def allow(command: str) -> Callable[[Brokers], object]:
    return lambda brokers: brokers.admin.execute_command("ACL", "SETUSER", "default", f"+{command}")


def setting(name: str, value: object) -> Callable[[Brokers], object]:
    return lambda brokers: brokers.admin.config_set(name, value)


def lead_to_cluster(brokers: Brokers) -> None:
    brokers.lead_to(brokers.cluster_port)


def lead_to_loading(brokers: Brokers) -> None:
    brokers.lead_to(brokers.loading_port)


def lead_back(brokers: Brokers) -> None:
    brokers.lead_to(port_of_master(brokers))


def port_of_master(brokers: Brokers) -> int:
    return int(brokers.admin.connection_pool.connection_kwargs["port"])


SLOW = pytest.mark.slow  # the same with another error
KINDS = [
    pytest.param("READONLY", demote, promote, id="demoted"),
    pytest.param("WRONGTYPE", replace_queue, lambda brokers: brokers.admin.delete(QUEUE), id="the queue is no list"),
    pytest.param("NOPERM", forbid("brpop"), allow("brpop"), id="the right to take chunks is withdrawn"),
    pytest.param("NOPERM", forbid("set"), allow("set"), id="the right to send heartbeats is withdrawn"),
    pytest.param("READONLY", refuse_stale_reads, allow_stale_reads, marks=SLOW, id="demoted, without its master"),
    pytest.param(
        "NOREPLICAS",
        setting("min-replicas-to-write", 1),
        setting("min-replicas-to-write", 0),
        marks=SLOW,
        id="no replica is left",
    ),
    pytest.param("MISCONF", fail_to_save, save_again, marks=SLOW, id="the disk is full"),
    pytest.param("OOM", setting("maxmemory", 1), setting("maxmemory", 0), marks=SLOW, id="the memory is full"),
    pytest.param("LOADING", lead_to_loading, lead_back, marks=SLOW, id="loading"),
    pytest.param("NOAUTH", ask_for_password, ask_for_none, marks=SLOW, id="a password is asked for"),
    pytest.param("CLUSTERDOWN", lead_to_cluster, lead_back, marks=SLOW, id="a cluster's node takes its place"),
]
"""The error that Redis answers with, and what begins and ends it."""


@pytest.mark.parametrize(("code", "begin", "end"), KINDS)
def test_a_worker_outlives_each_error_of_its_broker_and_names_the_error(
    brokers: Brokers, code: str, begin: Callable[[Brokers], object], end: Callable[[Brokers], object]
) -> None:
    scorer = RemoteScorer(brokers.group.redis_url, STAND_IN, queue_chunks=64)
    with ThreadPoolExecutor(4) as threads:
        assert scorer.score("q", *HUNDRED).reached == 100
        under_way = [threads.submit(scorer.score, "q", *HUNDRED) for _ in range(4)]
        begin(brokers)
        wait_until(lambda: code in brokers.reason, 15, lambda: f"{brokers.reason} {brokers.group.log()[-3000:]}")
        assert asked(brokers.probes, "/ready")[0] == 503
        assert asked(brokers.probes, "/live")[0] == 200
        under_way.append(threads.submit(scorer.score, "q", *HUNDRED))
        for call in under_way:
            with suppress(WorkerError):
                assert call.result(15).reached == 100
        end(brokers)
        wait_until(lambda: asked(brokers.probes, "/ready")[0] == 200, 15, brokers.group.log)
        assert scored(scorer).reached == 100
    scorer.close()
    wait_until(lambda: asked(brokers.probes, "/ready")[1]["held"] == 0, 15)
    assert [process.poll() for process in brokers.group.processes] == [None]


@pytest.mark.parametrize("what", ["CLIENT UNBLOCK", "CLIENT KILL"])
def test_workers_and_clients_whose_wait_at_the_broker_is_ended_wait_again(brokers: Brokers, what: str) -> None:
    def end_waits() -> set[str]:
        waits = [client for client in brokers.admin.client_list() if client["cmd"] in ("brpop", "blpop")]
        for client in waits:
            if what == "CLIENT UNBLOCK":
                brokers.admin.execute_command("CLIENT", "UNBLOCK", client["id"], "ERROR")
            else:
                brokers.admin.execute_command("CLIENT", "KILL", "ID", client["id"])
        return {client["cmd"] for client in waits}

    scorer = RemoteScorer(brokers.group.redis_url, STAND_IN, queue_chunks=64)
    slow = [("q" * 1000, ["q"] * 100, [(n,) for n in range(100)]) for _ in range(10)]
    with ThreadPoolExecutor(10) as threads:
        calls = [threads.submit(scorer.score, *call) for call in slow]
        wait_until(lambda: "blpop" in end_waits())
        wait_until(lambda: "brpop" in end_waits())
        assert [call.result(30).reached for call in calls] == [100] * 10
    scorer.close()
    assert [process.poll() for process in brokers.group.processes] == [None]


def test_a_worker_whose_broker_is_a_replica_logs_that_and_stops_with_code_0(brokers: Brokers, tmp_path: Path) -> None:
    probes = servers.free_port()
    group = WorkerGroup(
        brokers.group.redis_url,
        tmp_path,
        model="another",
        module="tests.workers",
        environment={"OSRERANK_PROBE_PORT": str(probes)},
    )
    demote(brokers)
    try:
        group.start(wait=False)
        wait_until(lambda: answers(probes) and "READONLY" in asked(probes, "/ready")[1]["reason"], 30, group.log)
        promote(brokers)
        group.wait_for(1)
        demote(brokers)
        wait_until(lambda: "READONLY" in asked(probes, "/ready")[1]["reason"], 30, group.log)
        assert group.stop() == [0]
    finally:
        promote(brokers)
        group.stop()


def answers(port: int) -> bool:
    with suppress(OSError):
        return asked(port, "/live")[0] == 200
    return False


def test_a_connection_to_a_broker_that_refuses_writes_is_not_used_again(brokers: Brokers, tmp_path: Path) -> None:
    """The connection to a master that was demoted stays; a new one leads to the new master."""
    replica = ("--replicaof", "127.0.0.1", "1")
    with servers.start_redis(servers.redis_binary(), tmp_path, options=replica) as (url, _), Proxies() as proxies:
        port = proxies.open("redis", port_of(url))
        with connect(f"redis://127.0.0.1:{port}/0") as redis:
            redis.ping()
            proxies.links["redis"].target = port_of_master(brokers)
            with pytest.raises(ReadOnlyError):
                redis.set("some", "value")
            assert redis.set("some", "value")
            pipeline = redis.pipeline(transaction=False)
            assert pipeline.delete("some").execute() == [1]


def scored(scorer: RemoteScorer) -> Scores:
    """Score as soon as the client uses the broker again."""
    found: list[Scores] = []

    def tried() -> bool:
        with suppress(WorkerError):
            found.append(scorer.score("q", *HUNDRED))
        return bool(found)

    wait_until(tried, 15)
    return found[0]
