import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.errors import ConfigError
from tests.servers import ROOT

pytest.importorskip("torch")
pytest.importorskip("onnx")


ROW = {"total_ms", "query_ms", "keys_ms", "read_ms", "check_ms", "cosines_ms"}

WITHOUT_VECTORS = ROOT / "tests" / "data" / "tiny-bert-one-label"


@pytest.mark.long
def test_it_measures_documents_whose_vectors_are_there(model: Path) -> None:
    workload = ["--words", "10", "--words", "30", "--queries", "2", "--depth", "20", "--rounds", "2"]
    arguments = ["--model", str(model), "bench", "--vectors", "exact", *workload]
    report = json.loads(CliRunner().invoke(cli, ["--json", *arguments], catch_exceptions=False).stdout)
    rows = report["rows"]
    assert [row["name"].split(", ")[1] for row in report["beside"][:2]] == ["vectors in memory", "vectors in file"]
    assert [row["pairs"] for row in report["beside"]] == ["invented, 10 words"] * 3 + ["invented, 30 words"] * 3
    assert all(row["top10_shared"] > 0.5 for row in report["beside"])
    assert [(row["pairs"], row["depth"]) for row in rows] == [("invented, 10 words", 20), ("invented, 30 words", 20)]
    for row in rows:
        assert row.keys() > ROW
        assert all(row[name] > 0 for name in ROW)
        assert row["pairs_per_s"] == pytest.approx(20_000 / row["total_ms"])
        assert row["bytes_per_text"] > 100
    shown = CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout
    assert "times whole pairs" in shown


def test_a_model_without_vectors_is_refused() -> None:
    result = CliRunner().invoke(cli, ["--model", str(WITHOUT_VECTORS), "bench", "--vectors", "standard"])
    assert isinstance(result.exception, ConfigError)
    assert "name a bi-encoder" in str(result.exception)
