"""The command line as a whole: help, errors, repeated options, and the command `osrerank search`."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from osrerank import connect
from osrerank.cli import COMMANDS, cli, main


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


def test_every_command_loads_and_has_help():
    context = click.Context(cli)
    assert set(COMMANDS) <= set(cli.list_commands(context))
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None, name
        assert command.help, name
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_texts_that_the_output_cannot_encode_are_escaped(encoding, monkeypatch):
    text = "caf\xe9 \ud800 \u8336"  # a document of OpenSearch can have half a surrogate pair
    response = {
        "hits": {"hits": [{"_id": "1", "_score": 1.0, "_source": {"text": text}}], "total": {"value": 1}},
        "took": 1,
    }
    client = Mock(**{"search.return_value": response})
    monkeypatch.setattr("osrerank.cli.search.open_client", lambda _context: client)
    printed = []
    for options in ((), ("--json",)):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stdout)
        main([*options, "search", "tea", "--index", "notes"])
        stdout.flush()
        printed.append(stdout.buffer.getvalue().decode(encoding))
    assert "caf\xe9 \\ud800" in printed[0]
    assert json.loads(printed[1]) == response


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["no-such-command"], 2, "No such command"),
        (["search", "x"], 2, "--index"),
        (["--backend", "abacus", "search", "x", "--index", "i"], 2, "abacus"),
        (["search", "x", "--index", "i", "--depth", "0"], 2, "--depth"),
    ],
)
def test_errors_of_commands_are_one_sentence(arguments, code, sentence, capsys):
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "twice"),
    [
        (["--url", "a", "--url", "b", "doctor"], "--url is set 2 times"),
        (["run", "--pairs", "sample,seed=1", "--pairs", "sample,seed=2"], "--pairs is set 2 times"),
        (["run", "-o", "a", "--output", "b"], "--output/-o is set 2 times"),
        (["search", "x", "--no-rerank", "--rerank"], "--rerank/--no-rerank is set 2 times"),
        (["train", "mono", "--recipe", "icip", "--recipe", "birch"], "--recipe is set 2 times"),
        (["convert", "queries", "x", "-o", "a", "-o", "b"], "--output/-o is set 2 times"),
        (["run", "--passages", "maxp,limit=5,limit=6"], "limit is set twice"),
        (["train", "mono", "--data", "triples=a,triples=b"], "triples is set twice"),
    ],
)
def test_an_option_given_twice_is_refused(arguments, twice, capsys):
    assert run(*arguments) == 2
    assert f"{twice}; set it once" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named_once_and_debug_shows_the_traceback(capsys):
    assert run("--url", "http://127.0.0.1:9", "search", "x", "--index", "i") == 1
    shown = capsys.readouterr().err
    assert shown.count("ConnectionError") == 1
    assert shown.count("refused") == 1
    assert "--debug" in shown
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        main(["--debug", "--url", "http://127.0.0.1:9", "search", "x", "--index", "i"])


def test_without_a_url_a_folder_of_the_user_is_searched(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OSRERANK_URL", raising=False)
    with connect(f"embedded:{tmp_path / '.local' / 'share' / 'osrerank'}") as client:
        client.index(index="notes", id="1", body={"text": "salt raises blood pressure"}, refresh=True)
    main(["search", "salt", "--index", "notes", "--no-rerank"])
    assert "salt raises blood pressure" in capsys.readouterr().out


@pytest.mark.long
def test_search_prints_explanations_or_json(tmp_path, capsys):
    client = connect(f"embedded:{tmp_path}")
    client.index(index="notes", id="1", body={"text": "salt raises blood pressure [bold]"}, refresh=True)
    client.close()
    common = ["--url", f"embedded:{tmp_path}", "search", "blood pressure", "--index", "notes"]
    main([*common, "--explain"])
    shown = capsys.readouterr().out
    assert "[bold]" in shown
    assert "vectors: rank 1" in shown
    assert "1 inferences" in shown
    main([*common, "--no-rerank"])
    assert "first pass only" in capsys.readouterr().out
    main([*common, "--json"])
    response = json.loads(capsys.readouterr().out)
    assert response["rerank"]["applied"] is True


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["workers", *(pytest.param(name, marks=pytest.mark.slow) for name in ("index_loaders", "cli"))]
)
def test_commands_work_beside_an_applications_packages_of_equal_names(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the application is imported')")
    program = str(Path(sys.executable).with_name("osrerank"))
    how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": "."}}
    for arguments in (["--help"], ["worker", "--help"], ["index", "--help"]):
        ended = subprocess.run([program, *arguments], check=False, **how)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "Usage: osrerank" in ended.stdout
