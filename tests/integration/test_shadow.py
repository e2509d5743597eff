"""Searches in shadow on both engines, by both clients, and by two processes that write one file."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osrerank import connect
from osrerank.aio import connect_async
from osrerank.decision.use.shadow import read_report
from osrerank.testing import FunctionScorer
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LAST_FIRST = FunctionScorer(lambda _query, text: float(text.rsplit(maxsplit=1)[-1]))
RERANK: Any = {"shadow": True, "blend": "replace"}
SEARCHING = """
import sys
from osrerank import connect
from osrerank.testing import FunctionScorer

with connect(sys.argv[1], scorer=FunctionScorer()) as client:
    for number in range(20):
        client.search("pressure", index=sys.argv[2], rerank={"shadow": True, "share": 1})
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shadow.jsonl"
    monkeypatch.setenv("OSRERANK_SHADOW_FILE", str(path))
    return path


def fill(client: Any, index: str) -> None:
    lines = [
        line for number in range(30) for line in ({"index": {"_id": str(number)}}, {"text": f"blood pressure {number}"})
    ]
    assert not client.bulk(index=index, body=lines, refresh=True)["errors"]


def records(file: Path, least: int) -> list[dict[str, Any]]:
    wait_until(lambda: file.exists() and file.read_text("utf-8").count("\n") >= least)
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_both_engines_and_clients_answer_first_and_rerank_later(engine_url: str, index_name: str, file: Path) -> None:
    body = {"query": {"match": {"text": "blood pressure"}}, "size": 5}
    with connect(engine_url, scorer=LAST_FIRST) as client:
        fill(client, index_name)
        plain = client.search(index=index_name, body=body)
        found = client.search(index=index_name, body=body, rerank=RERANK)
        assert found["hits"] == plain["hits"]
        several = client.msearch(body=[{"index": index_name}, body, {}, body], index=index_name, rerank=RERANK)
        assert [one["hits"] for one in several["responses"]] == [plain["hits"]] * 2
        records(file, 3)

    async def search() -> None:
        async with connect_async(engine_url, scorer=LAST_FIRST) as asynchronous:
            found = await asynchronous.search(index=index_name, body=body, rerank=RERANK)
            assert found["hits"] == plain["hits"]
            await asyncio.to_thread(records, file, 4)

    asyncio.run(search())
    for one in records(file, 4):
        assert (one["index"], one["applied"], one["hits"], one["overlap"]) == (index_name, True, 5, 0)


@pytest.mark.long
def test_two_processes_write_one_file(engine_url: str, index_name: str, file: Path) -> None:
    if engine_url.startswith("embedded:"):
        pytest.skip("one process at a time writes to the embedded engine")
    with connect(engine_url) as client:
        fill(client, index_name)
    command = [sys.executable, "-c", SEARCHING, engine_url, index_name]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [one.wait(120) for one in both] == [0, 0]
    report = read_report([file])
    assert report.searches + report.dropped == 40
    assert (report.unreadable, report.applied["true"]) == (0, report.searches)
