import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from osrerank.cli import cli
from osrerank.evaluation.checkpoint import Checkpoint
from osrerank.evaluation.records import Record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of one query, whose relevant document is third in the first pass and first for both models."""
    candidates = [
        {
            "doc_id": doc_id,
            "score": 2.0 - rank / 10,
            "first_pass": {"score": 5.0, "rank": before},
            "stages": {"mono": {"score": float(-rank), "rank": rank}},
        }
        for rank, (doc_id, before) in enumerate([("b", 2), ("c", 3), ("a", 1)], start=1)
    ]
    record = Record.make("q", candidates, [{"name": "mono", "candidates": 3, "inferences": 3}], True, None, 0.0)
    pairs = {"doc_ids": ["b", "c"], "probabilities": [[None, 0.2], [0.9, None]]}
    with Checkpoint(tmp_path / "run.jsonl", {}) as checkpoint:
        checkpoint.append(Record("q", {**record.fields, "pairs": pairs}))
    (tmp_path / "qrels").write_text("q 0 c 1\n")
    return tmp_path


def shown(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli, ["tradeoff", str(folder / "qrels"), str(folder / "run.jsonl"), "-m", "RR", *arguments]
    )


def test_points_have_cost_and_quality(folder: Path) -> None:
    outcome = shown(folder, "--json", "--k1", "0,2", "--pairs", "sum")
    assert json.loads(outcome.output)["points"] == [
        {"curve": "monoBERT", "k0": 0, "k1": 0, "inferences": 0.0, "quality": pytest.approx(1 / 3)},
        {"curve": "monoBERT", "k0": 3, "k1": 0, "inferences": 3.0, "quality": 0.5},
        {"curve": "duoBERT Sum, k0 = 3", "k0": 3, "k1": 0, "inferences": 3.0, "quality": 0.5},
        {"curve": "duoBERT Sum, k0 = 3", "k0": 3, "k1": 2, "inferences": 5.0, "quality": 1.0},
    ]


def test_csv_table_and_plot(folder: Path) -> None:
    outcome = shown(folder, "--csv", "--k0", "0,2", "--plot", str(folder / "plot.svg"))
    assert outcome.output.splitlines()[:3] == [
        "curve,k0,k1,inferences,quality",
        "monoBERT,0,0,0.0,0.3333333333333333",
        "monoBERT,2,0,2.0,0.3333333333333333",
    ]
    assert "Inferences per query" in (folder / "plot.svg").read_text()
    assert ["monoBERT", "3", "0", "3.0", "0.5000"] in [line.split() for line in shown(folder).output.splitlines()]


def test_depth_beyond_the_run_and_bad_lists_are_refused(folder: Path) -> None:
    assert "is not a list of whole numbers" in shown(folder, "--k0", "0,ten").output
    outcome = shown(folder, "--k0", "3", "--k1", "3")
    assert "did not keep duoBERT's probabilities for the pairs of the top 3" in str(outcome.exception)
