"""`osrerank run` against a real OpenSearch, killed and resumed."""

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osrerank.formats.trec import read_run
from tests.articles import filled
from tests.servers import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
TINY = ROOT / "tests" / "data" / "tiny-bert-one-label"
N_QUERIES = 24
SAMPLE = ROOT / "osrerank" / "data" / "squad"
INDEX = "test-run-passages"


@pytest.fixture(scope="module")
def url(opensearch_url: str) -> Iterator[str]:
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt") as lines:
        documents = [json.loads(line) for line in lines][:300]
    with filled(opensearch_url, INDEX, {document["id"]: document for document in documents}):
        yield opensearch_url


def command(url: str, output: Path, *arguments: str) -> list[str]:
    queries = output.parent / "queries.tsv"
    queries.write_text("".join((SAMPLE / "queries.tsv").read_text().splitlines(keepends=True)[:N_QUERIES]))
    query_arguments = ["--queries", str(queries), "--index", INDEX, "--hits", "20", "--depth", "10", "--tag", "tag"]
    model = ["--model", str(TINY), "--backend", "onnx"]
    return [
        sys.executable,
        "-m",
        "osrerank",
        "--url",
        url,
        *model,
        "run",
        *query_arguments,
        "-o",
        str(output),
        *arguments,
    ]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other cores alone: a tiny model gains nothing from them."""
    monkeypatch.setenv("OSRERANK_THREADS", "1")


def side_file(output: Path) -> list[dict[str, object]]:
    """Return the lines of the side file without their timings."""

    def timeless(value: object) -> object:
        if isinstance(value, dict):
            return {name: timeless(part) for name, part in value.items() if name != "took_ms"}
        return [timeless(part) for part in value] if isinstance(value, list) else value

    lines = output.with_name(f"{output.name}.jsonl").read_text().splitlines()
    return [timeless(json.loads(line)) for line in lines]


def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(url: str, tmp_path: Path) -> None:
    whole_run, killed = tmp_path / "whole.run", tmp_path / "killed.run"
    subprocess.run(command(url, whole_run, "--workers", "2"), check=True, capture_output=True)
    partial = killed.with_name("killed.run.jsonl")
    process = subprocess.Popen(command(url, killed), stderr=subprocess.DEVNULL)
    wait_until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= 4)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not killed.exists()
    done = partial.read_bytes().count(b"\n") - 1
    assert 3 <= done < N_QUERIES
    partial.write_bytes(partial.read_bytes() + b'{"query_id":"torn","candi')
    resumed = subprocess.run(command(url, killed), check=True, capture_output=True, text=True)
    assert f"resuming after {done} of {N_QUERIES} queries" in resumed.stderr
    assert killed.read_bytes() == whole_run.read_bytes()
    assert side_file(killed) == side_file(whole_run)
    assert len(read_run(killed).rankings) == N_QUERIES


@pytest.mark.slow
def test_a_run_is_not_resumed_on_a_recreated_index(url: str, tmp_path: Path) -> None:
    output = tmp_path / "bm25.run"
    url_with_password = url.replace("://", "://user:secret@")
    subprocess.run(command(url_with_password, output, "--no-rerank"), check=True, capture_output=True)
    side = output.with_name("bm25.run.jsonl")
    options = json.loads(side.read_text().splitlines()[0])["options"]
    assert options["url"] == [url]
    assert len(options["uuids"][INDEX]) == 22
    assert "secret" not in side.read_text()
    side.write_text(side.read_text().replace(options["uuids"][INDEX], "x" * 22))
    ended = subprocess.run(command(url, output, "--no-rerank"), check=False, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "is from a run with other options (uuids was" in ended.stderr
