"""Machines that lack something: a home, room on the disk, a folder that can be written, an extra."""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osrerank import Reranker, connect
from osrerank._log_throttle import LogThrottle
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.checkpoints.convert import convert_if_needed
from osrerank.settings import Settings
from osrerank.vectors import storage
from osrerank.vectors.lmdb_file import LOCK_FILE_BYTES, open_lmdb

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know."""

    def nobody(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "OSRERANK_VECTORS_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(storage, "log_throttle", LogThrottle())


@pytest.mark.usefixtures("no_home")
def test_without_a_home_searches_are_reranked_and_one_line_says_that_vectors_are_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = str(DATA / "tiny-bert-bi-encoder")
    with connect(f"embedded:{tmp_path}", model=model) as client:
        client.index(index="notes", id="1", body={"text": "salt"}, refresh=True)
        assert client.search("salt", index="notes", rerank={"deadline_ms": None})["rerank"]["applied"] is True
    (line,) = [line for line in caplog.messages if "home" in line]
    assert line.startswith("[vectors-away] document vectors are not stored: ")
    assert "OSRERANK_VECTORS_FOLDER" in line
    with Reranker(model) as reranker:
        assert len(reranker.rank("salt", ["salt water", "river"])) == 2


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("variables", [{}, {"VECTORS": "off"}, {"VECTORS_FOLDER": "/nowhere"}])
def test_without_a_home_the_unused_default_folder_is_not_logged(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OSRERANK_{name}", value)
    assert Settings.load().find_settings_file() is None
    with pytest.raises(ConfigError, match="OSRERANK_URL"):
        connect(model=str(DATA / "tiny-bert-bi-encoder"))
    caplog.clear()
    with connect(f"embedded:{tmp_path}", model=str(DATA / "tiny-bert-bi-encoder")) as client:
        client.search("salt", rerank={"deadline_ms": None})
    assert any("home" in line for line in caplog.messages) == (not variables)


@pytest.mark.usefixtures("no_home")
def test_converting_a_checkpoint_without_a_home_needs_a_named_folder() -> None:
    with pytest.raises(ModelLoadError, match=r"must be converted.*has no home.*XDG_CACHE_HOME"):
        convert_if_needed(DATA / "tiny-bert-tensorflow")


def test_a_checkpoint_that_cannot_be_written_is_named_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match=r"must be converted.*Not a directory.*XDG_CACHE_HOME"):
        convert_if_needed(DATA / "tiny-bert-tensorflow")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system has no posix_fallocate")
def test_the_lock_file_of_vectors_is_allocated_before_lmdb_maps_it(tmp_path: Path) -> None:
    open_lmdb(tmp_path / "vectors.mdb", 1_000_000).close()
    locks = (tmp_path / "vectors.mdb-lock").stat()
    assert locks.st_size == LOCK_FILE_BYTES  # as LMDB makes it
    assert locks.st_blocks * 512 >= LOCK_FILE_BYTES


WITHOUT = [
    ("celery", ["--redis-url", "redis://127.0.0.1:9", "worker"], "workers"),
    ("msgpack", ["--redis-url", "redis://127.0.0.1:9", "worker"], "workers"),
    ("fastapi", ["serve"], "server"),
    ("uvicorn", ["serve"], "server"),
    ("ir_measures", ["evaluate", "qrels", "run"], "eval"),
]


@pytest.mark.long
@pytest.mark.parametrize(("module", "arguments", "extra"), WITHOUT)
def test_a_command_without_its_extra_names_the_extra_in_a_sentence(
    module: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "qrels").write_text("1 0 a 1\n")
    (tmp_path / "run").write_text("1 Q0 a 1 1.0 tag\n")
    program = f"import sys; sys.modules[{module!r}] = None; from osrerank.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr
    assert "ModuleNotFoundError" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert f"osrerank[{extra}]" in ended.stderr
