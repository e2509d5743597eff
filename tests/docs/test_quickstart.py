"""The quickstart, word for word: every block runs, in order, on an engine in this process."""

import ast
import asyncio
import gzip
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

import osrerank
from tests.articles import ARTICLES, fill
from tests.recording_engine import recording_engine
from tests.servers import ROOT

PAGE = ROOT / "docs" / "quickstart.md"
SAMPLE = ROOT / "osrerank" / "data" / "squad"
SERVER = "https://user:password@localhost:9200"
NOT_RUN = ("make demo", "pip install osrerank")
"""The first is run by hand and by the CI, the second is what brought us here."""


class Block(NamedTuple):
    language: str
    text: str


class Elasticsearch:
    """Answers as an elasticsearch-py client."""

    def search(self, **_arguments: Any) -> Any:
        hit = {"_index": "articles", "_score": 1.0}
        hits = [{**hit, "_id": str(index), "_source": article} for index, article in enumerate(ARTICLES)]
        return {"took": 1, "hits": {"total": {"value": 2, "relation": "eq"}, "hits": hits}}


def blocks() -> Iterator[Block]:
    for language, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        yield Block(language, text)


def run_python(text: str, names: dict[str, Any]) -> None:
    code: CodeType = compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    if inspect.iscoroutine(value):

        async def whole() -> None:
            await value
            await names["client"].close()

        asyncio.run(whole())


def run_shell(text: str, url: str) -> list[str]:
    shown = []
    for line in text.splitlines():
        if line in NOT_RUN:
            continue
        program, *arguments = shlex.split(line, comments=True)
        assert program.removeprefix(".venv/bin/") == "osrerank"
        command = [sys.executable, "-m", "osrerank", *(argument.replace(SERVER, url) for argument in arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        shown.append(done.stdout)
    return shown


@pytest.mark.long
def test_the_quickstart_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("ir_measures")
    monkeypatch.chdir(tmp_path)
    url = f"embedded:{tmp_path / 'engine'}"
    monkeypatch.setenv("OSRERANK_URL", url)
    (tmp_path / "corpus.jsonl").write_bytes(gzip.decompress((SAMPLE / "corpus.jsonl.gz").read_bytes()))
    (tmp_path / "queries.tsv").write_text("".join((SAMPLE / "queries.tsv").read_text().splitlines(keepends=True)[:3]))
    (tmp_path / "qrels.txt").write_bytes((SAMPLE / "qrels.txt").read_bytes())
    run_shell("osrerank index jsonl corpus.jsonl --index osrerank-demo", url)  # as `make demo` does
    with osrerank.connect(url) as client:
        fill(client, "articles", ARTICLES)
    folder = lambda _settings: tmp_path / "engine"  # noqa: E731 - stands in for the server at localhost
    monkeypatch.setattr("osrerank.client.embedded_folder", folder)
    monkeypatch.setattr("osrerank.aio.embedded_folder", folder)
    names: dict[str, Any] = {
        "elasticsearch_client": Elasticsearch(),
        "body": {"query": {"match": {"body": "low blood pressure"}}},
    }
    shown: list[str] = []
    clients = []
    with recording_engine() as engine:
        names |= {"nodes": f"http://127.0.0.1:{engine.server_port}", "key": "c2VjcmV0"}
        names["hosts"] = [{"host": "127.0.0.1", "port": engine.server_port}]
        names["credentials"] = pytest.importorskip("botocore.credentials").Credentials("AKIDEXAMPLE", "secret")
        for block in blocks():
            if block.language == "python":
                run_python(block.text, names)
                clients.append(names.get("client"))
                assert names.get("response", {}).get("rerank", {"applied": True})["applied"] is True
                if "await" in block.text:
                    names["client"] = clients[0]
            elif block.language == "text":
                continue  # what a command prints
            elif block.language == "toml":
                (tmp_path / "osrerank.toml").write_text(block.text)
                options = osrerank.connect().searcher.defaults.options_for("articles-7")
                assert options.query_fields == ("headline^2", "body")
                (tmp_path / "osrerank.toml").unlink()
            else:
                for value in {id(client): client for client in clients if isinstance(client, osrerank.Client)}.values():
                    value.transport.close() if value.is_owner else None
                shown += run_shell(block.text, url)
    output = capsys.readouterr().out
    assert "'applied': True" in output
    assert "Low blood pressure at noon" in output
    searched = next(text for text in shown if "Oxygen/26" in text)
    first = next(line for line in searched.splitlines() if line.split()[:1] == ["1"])
    assert int(first.split()[1]) > 1, "the example shows no gain"
    assert "Oxygen/26" in first
    assert "nDCG@10" in shown[-1]
