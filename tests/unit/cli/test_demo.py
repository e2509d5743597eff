"""The command `osrerank demo`: its searches, its models, and what pages show of its output."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from osrerank.cli import cli
from osrerank.cli.demo import LABELS, summary_table
from osrerank.errors import ModelLoadError
from tests.servers import ROOT

MINILM, CROSS_ENCODER = "osrerank/minilm-l6", str(ROOT / "tests" / "data" / "tiny-bert-one-label")
FIRST, KNOWN = "first_search", "known_texts"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs the command on three questions, with nothing stored at first, and returns its figures."""
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))

    def run(model: str = "", *options: str) -> dict[str, Any]:
        model_arguments = ["--model", model] if model else []
        arguments = ["--url", f"embedded:{tmp_path}", *model_arguments, "--json", "demo", "--questions", "3", *options]
        outcome = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        figures: dict[str, Any] = json.loads(outcome.stdout)
        return figures

    return run


@pytest.mark.long
def test_the_demo_encodes_new_texts_in_the_first_of_two_searches(demo: Any) -> None:
    shown = demo(MINILM)
    assert (shown["queries"], shown["bm25"]["encoded"], shown[KNOWN]["encoded"]) == (3, None, 0)
    assert shown[FIRST]["encoded"] > 20
    assert shown[KNOWN]["median_ms"] < shown[FIRST]["median_ms"]
    assert shown[KNOWN]["nDCG@10"] == shown[FIRST]["nDCG@10"] != shown["bm25"]["nDCG@10"]
    again = demo(MINILM)
    assert again[FIRST]["encoded"] == 0, "the vectors of the run before are there"


@pytest.mark.long
def test_the_demo_searches_once_with_a_model_without_vectors(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(demo(CROSS_ENCODER)) == {"queries", "depth", "bm25", FIRST}
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    shown = demo(MINILM)
    assert (shown[FIRST]["encoded"], KNOWN in shown) == (30, False)


@pytest.mark.long
def test_the_demo_has_a_mono_model_and_asks_for_a_duo_model(demo: Any) -> None:
    shown = demo("", "--pipeline", "mono")
    assert (shown[FIRST]["encoded"], KNOWN in shown) == (None, False)
    assert shown[FIRST]["nDCG@10"] > shown["bm25"]["nDCG@10"]
    assert demo(MINILM, "--pipeline", "mono")[KNOWN]["encoded"] == 0, "a named model stays"
    with pytest.raises(ModelLoadError, match=r"no duo model .* osrerank train duo; then set it with --duo-model"):
        demo("", "--pipeline", "mono-duo")


def test_the_quickstart_shows_what_the_demo_prints_and_the_readme_its_measures() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
    printed = re.search(r"```text\n(\d+ questions, top \d+ .+?)```", page, re.DOTALL)[1]  # type: ignore[index]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in printed.splitlines() if line[0] == "│"]
    count, depth = (int(number) for number in re.findall(r"\b\d+", printed.splitlines()[0]))
    figures: dict[str, Any] = {"queries": count, "depth": depth}
    assert [row[0] for row in rows] == list(LABELS.values())
    for name, (_, ndcg, rank, took, encoded) in zip(LABELS, rows, strict=True):
        counts = {"median_ms": int(took.replace(",", "")), "encoded": int(encoded) if encoded else None}
        figures[name] = {"nDCG@10": float(ndcg), "RR@10": float(rank), **counts}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(summary_table(figures))
    assert [line.rstrip() for line in capture.get().splitlines()] == printed.splitlines()
    bm25, *_, reranked_row = ((row[1].removeprefix("0"), row[2].removeprefix("0")) for row in rows)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"| {bm25[0]} / {bm25[1]} | **{reranked_row[0]} / {reranked_row[1]}** | `make demo` |" in readme
