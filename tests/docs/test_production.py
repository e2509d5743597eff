"""The way to production, word for word: every block runs, in order, with a side index in an engine in this process."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from click.testing import CliRunner

import osrerank
from osrerank.cli import cli
from tests.articles import ARTICLES, fill
from tests.servers import ROOT
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "production.md"
SIDE = "osrerank-vectors-articles-1"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine as the page has it: an alias, and the same articles under the new mapping."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    monkeypatch.setenv("OSRERANK_VECTORS", "index")
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda _port: None)
    monkeypatch.setenv("OSRERANK_URL", f"embedded:{tmp_path / 'engine'}")
    with osrerank.connect() as client:
        for name in ("articles-1", "articles-2"):
            fill(client, name, ARTICLES)
        client.indices.update_aliases(body={"actions": [{"add": {"index": "articles-1", "alias": "articles"}}]})


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_every_step_of_the_production_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    shown: dict[str, str] = {}
    for step, language, text in blocks():
        if language == "toml":
            (tmp_path / "osrerank.toml").write_text(text)
        elif language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        for line in text.splitlines() if language == "sh" else ():
            shown[line.partition("#")[0].strip()] = run(line, monkeypatch)
        if step == "Set a deadline":
            with osrerank.connect() as client:
                assert client.indices.exists(index=SIDE)
                assert client.searcher.defaults.options_for("articles").deadline_ms == 300
        if step == "Watch":
            assert names["response"]["rerank"]["applied"] is True
        if step == "Run in shadow mode" and language == "python":
            assert names["response"]["rerank"]["traffic"]["queued"] is True
            wait_until((tmp_path / "shadow.jsonl").exists)
        if step == "Roll back":
            with osrerank.connect() as client:
                response = client.search("blood", index="articles", rerank=True)
                assert response["rerank"]["reason_code"] == "not_asked"
    assert (
        "none of 2 documents lacks vectors"
        in shown["osrerank --model osrerank/minilm-l6 vectors status --index articles --at-least .99"]
    )
    assert "2 documents, 2 texts, 0 of them encoded now" in shown["osrerank vectors build --index articles-2"]
    assert list(names["client"].indices.get_alias(name="articles")) == ["articles-2"]
    assert "2 records dropped" in shown["osrerank vectors drop --yes"]


def blocks() -> Iterator[tuple[str, str, str]]:
    """Yield each block with its step and language."""
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        step = section.partition("\n")[0].partition(". ")[2]
        for language, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL):
            if language != "text":
                yield step, language, text


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command, or export a variable that is not set; return what is shown."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "export":
        name, _, value = arguments[0].partition("=")
        monkeypatch.setenv(name, os.environ.get(name, value))
        return ""
    assert program == "osrerank"
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, f"{line}: {outcome.output} {outcome.exception}"
    return outcome.output
