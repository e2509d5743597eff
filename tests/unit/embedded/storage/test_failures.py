"""Failures of the embedded engine's folder: second writers, full disks, damaged files, and kills."""

import contextlib
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opensearchpy import AuthorizationException, OpenSearch, TransportError

from osrerank import connect
from osrerank.embedded.errors import ApiError
from osrerank.embedded.storage.index import LiveIndex
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[4]
Opener = Callable[..., OpenSearch]


@contextlib.contextmanager
def child(what: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("children.py")), what, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def one_document(engine: OpenSearch) -> None:
    engine.index(index="a", id="1", body={"text": "some words"}, refresh=True)


def found(engine: OpenSearch) -> list[str]:
    return [hit["_id"] for hit in engine.search(index="a", body={"size": 1000})["hits"]["hits"]]


def test_a_second_writer_gets_the_process_id_of_the_first(open_engine: Opener, tmp_path: Path) -> None:
    with child("hold", tmp_path / "engine") as process:
        assert process.stdout.readline() == "written\n"
        engine = open_engine()
        assert found(engine) == ["child"]  # reading goes on
        with pytest.raises(TransportError) as caught:
            one_document(engine)
        assert caught.value.status_code == 503
        assert f"pid {process.pid}" in caught.value.info["error"]["reason"]
        process.kill()
        process.wait()
        one_document(engine)  # the lock died with its holder
        assert found(engine) == ["child", "1"]


def test_readers_see_what_other_processes_refresh(open_engine: Opener, tmp_path: Path) -> None:
    with child("index", tmp_path / "engine") as process:
        for line in process.stdout:
            if line == "done 4\n":
                break
        engine = open_engine()
        first = engine.count(index="a")["count"]
        assert first >= 60
        for line in process.stdout:
            if line == "done 12\n":
                break
        assert engine.count(index="a")["count"] > first


def test_a_full_disk_fails_writes_and_keeps_reads(open_engine: Opener, tmp_path: Path) -> None:
    with child("fill", tmp_path / "engine") as process:
        lines = process.stdout.read().splitlines()
    acknowledged = [line.split()[1] for line in lines if line.startswith("done")]
    (error,) = [line for line in lines if line.startswith("error")]
    assert error.startswith("error 429 cluster_block_exception")
    assert "free space" in error
    assert "found True" in lines
    assert set(found(open_engine())) >= {"first", *acknowledged}


def test_a_new_folder_on_a_full_disk_is_an_error_about_the_disk(tmp_path: Path) -> None:
    with child("start", tmp_path / "engine") as process:
        (error,) = process.stdout.read().splitlines()
    assert error.startswith("error 429 cluster_block_exception")
    assert "free space" in error


def test_a_failed_refresh_in_the_background_is_logged_once(
    engine: OpenSearch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = []

    def fail(_index: LiveIndex) -> None:
        failures.append(1)
        raise ApiError(429, "cluster_block_exception", "the disk is full")

    monkeypatch.setattr(LiveIndex, "refresh", fail)
    with caplog.at_level(logging.WARNING, logger="osrerank"):
        engine.index(index="a", id="1", body={"text": "some words"})
        wait_until(lambda: len(failures) > 1)
    (line,) = caplog.messages
    assert line.startswith("stored documents of [a] are not searchable until a refresh succeeds")
    assert line.endswith("the disk is full")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
def test_a_read_only_folder_is_searched_and_refuses_writes() -> None:
    with tempfile.TemporaryDirectory() as parent:  # not below tmp_path, which pytest keeps from other users
        Path(parent).chmod(0o755)
        folder = Path(parent) / "engine"
        engine = connect(f"embedded:{folder}")
        one_document(engine)
        engine.close()
        with child("read", folder) as process:
            lines = process.stdout.read().splitlines()
    assert lines[0] == "count 1"
    assert lines[1].startswith("error 403 cluster_block_exception")
    assert str(folder) in lines[1]


def test_a_folder_that_cannot_be_created_is_an_error(open_engine: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AuthorizationException) as caught:
        open_engine("file/below").info()
    assert "file/below" in caught.value.info["error"]["reason"]


@pytest.mark.parametrize(
    ("written", "kind", "fix"),
    [
        ("99", "index_format_too_new_exception", "upgrade osrerank"),
        ("1", "index_format_too_old_exception", "delete the folder and index again"),
        (None, "corrupt_index_exception", "store.sqlite is damaged"),
    ],
)
def test_a_store_of_another_format_or_damaged_is_refused(engine, open_engine, tmp_path, written, kind, fix):
    one_document(engine)
    engine.close()
    store = tmp_path / "engine" / "store.sqlite"
    if written is None:
        store.write_bytes(b"this is no database" * 100)
    else:
        with contextlib.closing(sqlite3.connect(store)) as db, db:
            db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (written,))
    with pytest.raises(TransportError) as caught:
        open_engine().info()
    assert (caught.value.status_code, caught.value.error) == (500, kind)
    assert fix in caught.value.info["error"]["reason"]


@pytest.mark.parametrize("suffix", [".term", ".store", ".idx", ".fast", ".fieldnorm", "meta.json"])
@pytest.mark.parametrize("gone", [False, True])
def test_damaged_search_index_is_built_again(engine, open_engine, tmp_path, caplog, suffix, gone):
    one_document(engine)
    engine.close()
    (damaged,) = [path for path in (tmp_path / "engine").rglob(f"*{suffix}") if ".managed" not in path.name]
    if gone:
        damaged.unlink()
    else:
        os.truncate(damaged, damaged.stat().st_size // 2)
    with caplog.at_level(logging.WARNING, logger="osrerank"):
        assert found(open_engine()) == ["1"]
    assert "again from the store" in caplog.text


@pytest.mark.parametrize(
    "point", [0, 2, *(pytest.param(point, marks=pytest.mark.slow) for point in (1, *range(3, 12)))]
)
def test_a_kill_while_indexing_loses_no_acknowledged_document(open_engine: Opener, tmp_path: Path, point: int) -> None:
    killed_and_reopened(open_engine, tmp_path, random.Random(point))


def killed_and_reopened(open_engine: Opener, folder: Path, rng: random.Random) -> None:
    """Kill an indexing process at a random moment; then all that it reported must be there."""
    begun, done = -1, -1
    with child("index", folder / "engine") as process:
        for _ in range(rng.randint(1, 60)):
            word, number = process.stdout.readline().split()
            begun, done = (int(number), done) if word == "begun" else (begun, int(number))
        time.sleep(rng.uniform(0, 0.05))  # anywhere within a request, a commit or a refresh
        process.send_signal(signal.SIGKILL)
        for line in process.stdout.read().splitlines():
            word, number = line.split()
            begun, done = (int(number), done) if word == "begun" else (begun, int(number))
    engine = open_engine()
    if done < 0:
        engine.indices.create(index="a", ignore=400)
    engine.indices.refresh(index="a")
    sure = {f"{batch}-{number}" for batch in range(done + 1) for number in range(20)} - {
        f"{batch}-0" for batch in range(done)
    }
    maybe = {f"{begun}-{number}" for number in range(20)} if begun > done else set()
    paths = set()
    for start in range(0, (done + 2) * 20, 1000):
        hits = engine.search(index="a", body={"size": 1000, "from": start, "_source": False})["hits"]["hits"]
        paths |= {hit["_id"] for hit in hits}
    if paths & maybe:  # a request is there as a whole or not at all
        assert paths == (sure | maybe) - {f"{begun - 1}-0"}
    else:
        assert paths == sure
    for doc_id in sorted(paths)[:5]:
        number = doc_id.partition("-")[0]
        hits = engine.search(index="a", body={"query": {"match": {"text": f"batch {number}"}}, "size": 100})["hits"][
            "hits"
        ]
        assert doc_id in {hit["_id"] for hit in hits}
        assert engine.get(index="a", id=doc_id)["found"]
