"""A short run in motion: nothing is lost, doubled, unmarked or wrong."""

from pathlib import Path

import pytest

from tests.chaos.run import Plan, perform


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_hundred_searches_in_motion(tmp_path: Path) -> None:
    summary = perform(Plan(seed=5, searches=300), tmp_path, log=tmp_path / "log.jsonl")
    assert summary["searches"] == 300
    for name in ("lost", "doubled", "unmarked_or_wrong", "failed_without_a_fault_of_opensearch"):
        assert summary[name] == 0, summary
    assert summary["reranked"] > 100
