"""The command `osrerank init`: the settings file that it writes, and how a settings file is chosen."""

import logging
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from osrerank import connect
from osrerank.cli import cli
from osrerank.cli.init import _choose_depth
from osrerank.errors import ConfigError
from osrerank.stages.language_guard import is_multilingual_installed
from tests.articles import ARTICLES, fill
from tests.workers import TINY


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url) as client:
        fill(client, "articles", ARTICLES)
    return url


def init(url: str, *arguments: str) -> Result:
    """Run the command; its errors are raised."""
    return CliRunner().invoke(cli, ["--url", url, "--model", TINY, "init", *arguments], catch_exceptions=False)


def test_init_writes_a_settings_file_that_searches_read(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = init(url, "--index", "articles", "--deadline-ms", "400")
    assert result.exit_code == 0, result.output
    assert "articles: searched: headline, body; read: headline, body" in result.output
    text = (tmp_path / "osrerank.toml").read_text("utf-8")
    assert text.startswith("# Made by osrerank init: 2 documents of articles were scored at ")
    assert tomllib.loads(text)["rerank"]["deadline_ms"] == 400
    with caplog.at_level(logging.INFO), connect(url, model=TINY) as client:
        assert str(tmp_path / "osrerank.toml") in caplog.text
        index_options, base = client.searcher.defaults.options_for("articles"), client.searcher.defaults.base
    assert (index_options.query_fields, index_options.fields) == (("headline", "body"),) * 2
    assert (base.deadline_ms, base.query_fields) == (400, None)
    assert 10 <= base.depth <= 100


@pytest.mark.long
def test_init_with_vectors_keeps_the_depth_and_builds_the_vectors(url, tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))

    def written(*arguments: str) -> tuple[dict[str, object], str]:
        command = ["--url", url, "init", "--index", "articles", "--force", *arguments]
        outcome = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        return tomllib.loads((tmp_path / "osrerank.toml").read_text("utf-8"))["rerank"], outcome.stdout

    lacking = "osrerank vectors build --index articles   (2 of 2 documents lack vectors; about 1 second here)"
    base, output = written()
    assert (base, lacking in output) == ({"depth": 100}, True)
    base, output = written("--build", "--deadline-ms", "400")
    assert base == {"depth": 100, "deadline_ms": 400}
    assert "articles: 2 documents, 2 texts, 2 of them encoded now" in output
    assert "articles: none of 2 documents lacks vectors" in written()[1]
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    base, output = written()
    assert base["deadline_ms"] == 1000
    assert "2 documents of articles were scored at" in output
    assert "vectors build" not in output


@pytest.mark.long
def test_init_keeps_an_existing_settings_file(url: str, tmp_path: Path) -> None:
    assert init(url).exit_code == 0
    before = (tmp_path / "osrerank.toml").read_bytes()
    assert b"[index" not in before
    with pytest.raises(ConfigError, match="already exists: edit it, choose another with --output"):
        init(url, "--deadline-ms", "50")
    assert (tmp_path / "osrerank.toml").read_bytes() == before
    assert init(url, "--deadline-ms", "50", "--force").exit_code == 0
    assert (tmp_path / "osrerank.toml").read_bytes() != before


def test_the_settings_file_is_chosen_by_argument_variable_working_directory_and_user_folder(url, tmp_path, monkeypatch):
    configuration = tmp_path / "configuration" / "osrerank"
    configuration.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(configuration.parent))

    def depth(**options: object) -> int:
        with connect(url, **options) as client:  # type: ignore[arg-type]
            return int(client.searcher.defaults.base.depth)

    assert depth() == 100
    (configuration / "osrerank.toml").write_text("[rerank]\ndepth = 11\n")
    assert depth() == 11
    (tmp_path / "osrerank.toml").write_text("[rerank]\ndepth = 12\n")
    assert depth() == 12
    (tmp_path / "named.toml").write_text("[rerank]\ndepth = 13\n")
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(tmp_path / "named.toml"))
    assert depth() == 13
    assert depth(rerank={"depth": 14}) == 14


@pytest.mark.parametrize(
    ("pairs_per_s", "deadline_ms", "depth"),
    [(3.0, 1000.0, 10), (85.0, 1000.0, 40), (85.0, 2000.0, 80), (5000.0, 1000.0, 100)],
)
def test_init_chooses_the_depth_that_takes_half_of_the_deadline(
    pairs_per_s: float, deadline_ms: float, depth: int
) -> None:
    assert _choose_depth(pairs_per_s, deadline_ms) == depth


@pytest.mark.long
def test_init_names_language_model_and_analyzer_for_german_documents(url: str, tmp_path: Path) -> None:
    sentence = "Diese leise Waschmaschine verbraucht wenig Wasser und wäscht auch Wolle, Seide und Kleider Nummer"
    with connect(url) as client:
        fill(client, "waren", [{"title": f"Ware {index}", "body": f"{sentence} {index}"} for index in range(5)])
    outcome = CliRunner().invoke(cli, ["--url", url, "init", "--index", "waren"], catch_exceptions=False)
    assert "waren: the documents are in de" in outcome.output
    assert "waren: osrerank/e5-small does not read de: osrerank/e5-multilingual reads it: " in outcome.output
    assert '"analyzer": "german"' in outcome.output
    models = tomllib.loads((tmp_path / "osrerank.toml").read_text("utf-8"))["index"]["waren"].get("model")
    assert models == ("osrerank/e5-multilingual" if is_multilingual_installed() else None)


@pytest.mark.long
def test_init_keeps_the_default_model_for_english_documents(url: str, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(cli, ["--url", url, "init", "--index", "articles"], catch_exceptions=False)
    assert "does not read" not in outcome.output
    assert "model" not in tomllib.loads((tmp_path / "osrerank.toml").read_text("utf-8"))["index"]["articles"]
