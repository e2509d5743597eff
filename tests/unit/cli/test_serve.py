"""The command `osrerank serve`: its options, its address, and how it starts."""

import contextlib
import socket

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.cli.serve import _read_judgments, _warm_up
from osrerank.errors import ConfigError, EndpointError
from osrerank.service import RerankService
from osrerank.settings import Settings
from tests.rerank_server import Reply, answering, server_file
from tests.servers import ROOT, free_port

TINY = str(ROOT / "tests" / "data" / "tiny-bert-one-label")


@pytest.mark.parametrize(
    ("options", "name"),
    [(["--allow-host", "a"], "allow-host"), (["--queries", __file__], "queries"), (["--qrels", __file__], "qrels")],
)
def test_options_of_the_comparison_page_need_the_option_ui(options, name):
    outcome = CliRunner().invoke(cli, ["serve", *options])
    assert isinstance(outcome.exception, ConfigError)
    assert f"--{name} belongs to the comparison page: add --ui" in str(outcome.exception)


@pytest.mark.parametrize("command", ["serve", "serve --ui", pytest.param("demo --ui", marks=pytest.mark.long)])
def test_serve_listens_on_the_loopback_address_by_default(command, tmp_path):
    arguments = ["--url", f"embedded:{tmp_path}", "--model", TINY, "--backend", "onnx", *command.split()]
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        port = busy_socket.getsockname()[1]
        outcome = CliRunner().invoke(cli, [*arguments, "--port", str(port)])
    assert f"cannot listen at http://127.0.0.1:{port}" in str(outcome.exception)


def test_serve_names_a_port_in_use_before_loading_the_model(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        arguments = ["--model", str(tmp_path / "no-model"), "serve", "--port", str(busy_socket.getsockname()[1])]
        outcome = CliRunner().invoke(cli, arguments)
    assert "cannot listen at" in str(outcome.exception)
    assert " on http://" not in outcome.stderr


def test_serve_does_not_start_if_the_settings_file_that_is_named_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(tmp_path / "none.toml"))
    arguments = ["--model", TINY, "--backend", "onnx", "serve", "--port", str(free_port())]
    outcome = CliRunner().invoke(cli, arguments)
    assert f"the settings file {tmp_path / 'none.toml'} cannot be read" in str(outcome.exception)


def test_serve_accepts_no_connection_before_the_model_is_loaded():
    from osrerank.server.run import bind, listen

    with bind("127.0.0.1", 0) as listener:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        listen(listener)
        socket.create_connection(listener.getsockname()).close()


def test_serve_prints_an_ipv6_address_in_brackets():
    from osrerank.server.run import server_url

    assert (server_url("::1", 8088), server_url("0.0.0.0", 80)) == ("http://[::1]:8088", "http://0.0.0.0:80")


def test_serve_reads_queries_and_judgments_together(tmp_path):
    with pytest.raises(ConfigError, match="--queries"):
        _read_judgments(None, str(tmp_path / "qrels"))
    (tmp_path / "queries.tsv").write_text("7\twhere does a duck sleep\n")
    (tmp_path / "qrels").write_text("7 0 a 2\n")
    judgments = _read_judgments(str(tmp_path / "queries.tsv"), str(tmp_path / "qrels"))
    assert judgments.find_judgments("Where does a duck sleep") == ("7", {"a": 2})


def served(folder, url):
    return RerankService(Settings.load(backend="http", settings_file=server_file(folder, url, dialect="tei")))


@pytest.mark.parametrize("status", [429, 503, None])
def test_serve_starts_although_the_scoring_server_behind_is_busy_or_away(status, tmp_path, capsys):
    answer = Reply(None) if status is None else Reply({"error": "later"}, status, (("Retry-After", "60"),))
    with answering(lambda _received: answer) as behind, contextlib.closing(served(tmp_path, behind.url)) as reranker:
        _warm_up(reranker)
    assert "it responds with 503 until that server is ready" in capsys.readouterr().err


def test_serve_does_not_start_if_the_scoring_server_behind_refuses_the_key(tmp_path):
    answer = answering(lambda _received: Reply({}, 401))
    expected = pytest.raises(EndpointError, match="OSRERANK_RERANK_KEY")
    with answer as behind, contextlib.closing(served(tmp_path, behind.url)) as reranker, expected:
        _warm_up(reranker)
