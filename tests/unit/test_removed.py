"""Removed options, commands and variables, each of which names its successor."""

from pathlib import Path

import pytest

from osrerank._removed import REMOVED
from osrerank.cli import main
from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.settings import PREFIX, Settings

OPTIONS = [name.removeprefix("rerank.") for name in REMOVED if name.startswith("rerank.")]
COMMANDS = [name.split()[1:] for name in REMOVED if name.startswith("osrerank ")]
VARIABLES = [name for name in REMOVED if name.startswith(PREFIX)]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_removed_option_names_its_successor(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rerank.of({name: None}, Rerank())
    assert REMOVED[f"rerank.{name}"] in str(caught.value)


def test_a_removed_blend_names_its_successor() -> None:
    with pytest.raises(ConfigError, match="rerank option blend is 'weighted'; use \"linear\""):
        Rerank.of({"blend": "weighted"}, Rerank())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_removed_command_names_its_successor(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert REMOVED[" ".join(["osrerank", *words])] in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", VARIABLES)
def test_a_removed_variable_names_its_successor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError) as caught:
        Settings.load()
    assert REMOVED[name] in str(caught.value)


def test_a_removed_secret_file_names_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "osrerank_states_key").write_text("a key of at least sixteen characters")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="osrerank_states_key is not a setting; set OSRERANK_VECTORS_KEY"):
        Settings.load()
