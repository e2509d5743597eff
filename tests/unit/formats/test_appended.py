"""Files that several processes append lines to."""

import json
import multiprocessing
from pathlib import Path

import pytest

from osrerank.formats.appended import AppendedLines

LINES = 500


def append(path: Path, name: str) -> None:
    file = AppendedLines(path, 10**8)
    for number in range(LINES):
        file.append(json.dumps({"of": name, "number": number, "long": name * 3000}))


def test_an_appended_file_is_private_and_stops_growing_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "log" / "shadow.jsonl"
    AppendedLines(path, 100).append("{}")
    assert path.read_bytes() == b"{}\n"
    assert path.stat().st_mode & 0o077 == 0
    path = tmp_path / "lines"
    file = AppendedLines(path, 10)
    file.append("12345678")
    with pytest.raises(OSError, match=r"the file has reached its limit of 1e-05 MB; move the file away"):
        file.append("9")
    path.rename(tmp_path / "moved")
    file.append("9")
    assert path.read_text("utf-8") == "9\n"


@pytest.mark.long
def test_lines_appended_by_two_processes_are_never_mixed(tmp_path: Path) -> None:
    path, spawn = tmp_path / "lines", multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=append, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for name in "ab":
        assert [line["number"] for line in lines if line["of"] == name] == list(range(LINES))
