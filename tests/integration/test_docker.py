"""What docker/ starts, without containers: its Redis, its OpenSearch's settings, its image's steps and commands."""

import json
import re
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from tests import servers
from tests.containers import Builder, Container
from tests.docker_files import DOCKER, cluster, project, run_secrets

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Broker:
    """A Redis with the configuration and users of docker/, and the folder of secrets for those who use it."""

    host_port: str
    secrets: Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("docker-redis")
    secrets = folder / "secrets"
    run_secrets(secrets)
    configuration = DOCKER / "redis" / "redis.conf"
    users = ("--aclfile", str(secrets / "redis_users"))
    with servers.start_redis(servers.redis_binary(), folder, options=users, configuration=configuration) as (url, _):
        host_port = url.removeprefix("redis://").removesuffix("/0")
        address = secrets / "osrerank_redis_url"
        inside = address.read_text()
        address.unlink()
        address.write_text(inside.replace("redis:6379", host_port))
        assert address.read_text() != inside
        yield Broker(host_port, secrets)


@pytest.fixture
def user(broker: Broker) -> Iterator[Redis]:
    client = Redis.from_url((broker.secrets / "osrerank_redis_url").read_text())
    yield client
    client.close()


def test_the_script_for_secrets_creates_matching_secrets_once(tmp_path):
    run_secrets(tmp_path / "secrets")
    files = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(files) > {Path(secret["file"]).name for secret in project()["secrets"].values()}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "secrets").iterdir()} == {0o444}
    password = files["redis_password"]
    assert len(password) == 40
    assert files["osrerank_redis_url"] == f"redis://osrerank:{password}@redis:6379/0"
    assert f"#{sha256(password.encode()).hexdigest()} " in files["redis_users"]
    assert password not in files["redis_users"]
    assert re.fullmatch(r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?=.*[^A-Za-z\d]).{40,}", files["opensearch_admin_password"])

    run_secrets(tmp_path / "secrets")
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == files
    (tmp_path / "secrets" / "redis_password").unlink()
    run_secrets(tmp_path / "secrets")
    renewed = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    changed = {name for name in files if files[name] != renewed[name]}
    assert changed == {"redis_password", "redis_users", "osrerank_redis_url"}


def test_the_redis_of_docker_evicts_no_message_and_writes_no_file(user):
    docker_info = user.info()
    assert docker_info["maxmemory_policy"] == "noeviction"
    assert docker_info["maxmemory"] == 512 * 2**20
    assert docker_info["aof_enabled"] == 0
    assert docker_info["rdb_last_save_time"] >= int(time.time()) - docker_info["uptime_in_seconds"] - 5
    assert user.info("stats").get("total_forks", 0) == 0


def test_the_redis_of_docker_lets_anonymous_users_only_ping(broker):
    host, _, port = broker.host_port.partition(":")
    with Redis(host, int(port), protocol=2) as stranger:
        assert stranger.ping()
        for command in ("GET x", "SET x 1", "INFO", "PUBLISH x 1", "ACL WHOAMI"):
            with pytest.raises(NoPermissionError):
                stranger.execute_command(*command.split())


def test_the_redis_of_docker_lets_its_user_work_but_not_administer(user):
    user.set("probe", "1", px=1000)
    assert user.eval("return redis.call('GET', KEYS[1])", 1, "probe") == b"1"
    for command in ("CONFIG GET *", "KEYS *", "FLUSHALL", "ACL LIST", "SHUTDOWN NOSAVE"):
        with pytest.raises(NoPermissionError):
            user.execute_command(*command.split())


@pytest.mark.slow
@pytest.mark.parametrize("services", [project, cluster], ids=["one node", "a cluster"])
def test_opensearch_accepts_every_setting_of_docker(services, tmp_path):
    home = servers.opensearch_home()
    if home is None:
        servers.missing("no OpenSearch distribution: set TEST_OPENSEARCH_HOME")
    environment = services()["services"]["opensearch"]["environment"].items()
    settings = {name: value for name, value in environment if re.match(r"[a-z0-9_]+\.[a-z0-9_]+", name)}
    assert "bootstrap.memory_lock" in settings
    if services is cluster:  # alone, and of the type that no type means
        settings |= {"discovery.seed_hosts": "127.0.0.1", "discovery.type": "zen"}
        settings |= {"cluster.initial_cluster_manager_nodes": settings["node.name"]}
    with (
        servers.start_opensearch(home, tmp_path, settings=settings) as (url, _process),
        urllib.request.urlopen(f"{url}/_nodes/_local/settings?flat_settings", timeout=10) as answer,
    ):
        (node,) = json.load(answer)["nodes"].values()
    assert node["settings"].items() >= settings.items()


def check_services(broker: Broker, environment: dict[str, str], folder: Path) -> None:
    """Start worker and server, see them healthy, score through both, and stop them."""
    token = (broker.secrets / "osrerank_server_token").read_text()
    worker = Container("worker", environment, broker.secrets, folder)
    assert not worker.is_healthy
    with worker:
        worker.wait_until(lambda: worker.is_healthy)
        with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/metrics", timeout=10) as answer:
            assert b"osrerank_worker_pairs_total" in answer.read()
        with Container("serve", environment, broker.secrets, folder) as server:  # as its depends_on says
            server.wait_until(lambda: server.is_healthy)
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.port}/v1/rerank",
                json.dumps({"query": "low blood pressure", "documents": ["A ball game.", "Hypotension."]}).encode(),
                {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert [result["index"] for result in json.load(answer)["results"]] == [1, 0]
            assert server.stop() == 0
        assert worker.stop() == 0
        assert not worker.is_healthy


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_steps_of_the_image_build_a_working_program(broker, tmp_path):
    """Every step of the CPU image in a fresh virtual environment, then its commands from there."""
    environment = Builder(tmp_path, sys.executable).build("cpu-packages")
    command = ["pip", "list", "--format=json"]
    listed = subprocess.run(command, env=environment, check=True, capture_output=True)
    names = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert names >= {"osrerank", "celery", "onnxruntime", "fastapi"}
    assert not names & {"torch", "pytest", "hatchling"}
    check_services(broker, environment, tmp_path)
