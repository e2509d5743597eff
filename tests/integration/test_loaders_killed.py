"""Killed at any point, the same command goes on and ends with exactly the right documents, none of them twice."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from tests import servers
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

DOCUMENTS = 12_000
KILLS = 4
IN_ORDINARY_SUITE = 1
_random = random.Random(20_190_113)
POINTS = [round(_random.uniform(0.01, 0.97), 3) for _ in range(KILLS)]
SOME_THEN_ALL = [
    pytest.param(point, marks=() if place < IN_ORDINARY_SUITE else pytest.mark.slow)
    for place, point in enumerate(POINTS)
]


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collection") / "collection.tsv"
    path.write_text("".join(f"{number}\t{text(number)}\n" for number in range(DOCUMENTS)))
    return path


def text(number: int) -> str:
    return f"passage {number} speaks of subject {number % 97} and of nothing else"


def command(passages: Path, index: str, url: str) -> list[str]:
    target_options = ["--index", index, "--url", url]
    options = ["--bulk-mb", "0.02", "--in-flight", "2", "--checkpoint-s", "0.1", "--json"]
    return [sys.executable, "-m", "osrerank", "index", "msmarco-passage", str(passages), *target_options, *options]


@contextlib.contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=servers.ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def documents_written(client: OpenSearch, index: str) -> int:
    """Documents in the index, searchable or not yet."""
    with contextlib.suppress(TransportError):
        return int(client.indices.stats(index=index, metric="indexing")["_all"]["primaries"]["indexing"]["index_total"])
    return 0


def documents_there(client: OpenSearch, index: str) -> int:
    """Documents in the index, also those written before the server was started."""
    with contextlib.suppress(TransportError):
        client.indices.refresh(index=index)
        return int(client.count(index=index)["count"])
    return 0


def finish(arguments: list[str]) -> dict[str, int]:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=servers.ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    summary: dict[str, int] = json.loads(done.stdout)
    return summary


def assert_exact(client: OpenSearch, index: str) -> None:
    """Every document once, with its text, and written once: an overwritten one would have a higher version."""
    found: dict[str, str] = {}
    for begin in range(0, DOCUMENTS, 2000):
        ids = [str(number) for number in range(begin, min(begin + 2000, DOCUMENTS))]
        for item in client.mget(index=index, body={"ids": ids})["docs"]:
            assert item["found"], item
            assert item["_version"] == 1, item
            found[item["_id"]] = item["_source"]["text"]
    assert found == {str(number): text(number) for number in range(DOCUMENTS)}
    assert client.count(index=index)["count"] == DOCUMENTS


def deleted(client: OpenSearch, index: str) -> int:
    """Lucene's deleted documents. A killed OpenSearch fills lost sequence numbers with tombstones, counted here too."""
    return int(client.indices.stats(index=index, metric="docs")["_all"]["primaries"]["docs"]["deleted"])


@pytest.mark.parametrize("point", SOME_THEN_ALL)
def test_a_killed_loader_continues_without_loss_or_duplicate(opensearch_url: str, passages: Path, point: float) -> None:
    client = OpenSearch([opensearch_url])
    index = f"killed-{point}"
    arguments = command(passages, index, opensearch_url)
    try:
        with running(arguments) as process:
            wait_until(lambda: documents_written(client, index) >= point * DOCUMENTS)
            assert process.poll() is None, "the load ended before it was killed"
        summary = finish(arguments)
        assert (summary["read"], summary["indexed"]) == (DOCUMENTS, DOCUMENTS)
        assert_exact(client, index)
        assert deleted(client, index) == 0
    finally:
        client.indices.delete(index=index, ignore_unavailable=True)
        client.close()


@pytest.mark.slow
def test_a_load_continues_after_opensearch_was_killed_twice(passages: Path, tmp_path: Path) -> None:
    home = servers.opensearch_home()
    if home is None:
        servers.missing("no OpenSearch of our own to kill: set TEST_OPENSEARCH_HOME")
    assert home is not None
    port = servers.free_port()
    arguments = command(passages, "survivor", f"http://127.0.0.1:{port}")
    with contextlib.ExitStack() as stack:
        for kill, point in enumerate((0.2, 0.5)):
            with servers.start_opensearch(home, tmp_path / "node", port=port) as (url, server):
                client = OpenSearch([url])
                if kill == 0:
                    loader = stack.enter_context(running(arguments))
                wait_until(
                    lambda wanted=point, client=client: documents_there(client, "survivor") >= wanted * DOCUMENTS
                )
                server.kill()
                server.wait()
                client.close()
        with servers.start_opensearch(home, tmp_path / "node", port=port) as (url, _server):
            output, errors = loader.communicate(timeout=180)
            assert loader.returncode == 0, errors.decode()
            assert json.loads(output)["indexed"] == DOCUMENTS
            client = OpenSearch([url])
            assert_exact(client, "survivor")
            client.close()
