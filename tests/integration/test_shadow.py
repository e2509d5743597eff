"""Searches in shadow by two processes that write one file."""

import subprocess
import sys
from pathlib import Path

import pytest

from osrerank.decision.use.shadow import read_report
from tests.articles import filled

pytestmark = pytest.mark.integration

NOTES = {str(number): {"text": f"blood pressure {number}"} for number in range(30)}
SEARCHING = """
import sys
from osrerank import connect
from osrerank.testing import FunctionScorer

with connect(sys.argv[1], scorer=FunctionScorer()) as client:
    for number in range(20):
        client.search("pressure", index="shadow", rerank={"traffic": {"shadow": True}})
"""


@pytest.mark.long
def test_two_processes_record_shadow_searches_in_one_file(
    opensearch_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shadow.jsonl"
    monkeypatch.setenv("OSRERANK_SHADOW_FILE", str(file))
    with filled(opensearch_url, "shadow", NOTES):
        searchers = [subprocess.Popen([sys.executable, "-c", SEARCHING, opensearch_url]) for _ in range(2)]
        assert [searcher.wait(120) for searcher in searchers] == [0, 0]
    report = read_report([file])
    assert report.searches + report.dropped == 40
    assert (report.unreadable, report.applied["true"]) == (0, report.searches)
