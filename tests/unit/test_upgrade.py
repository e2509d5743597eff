import json
import shutil
from pathlib import Path

import pytest

from osrerank.cli import main
from osrerank.errors import ConfigError
from osrerank.settings import Settings
from osrerank.upgrade import changes_from_02
from tests.servers import ROOT

DATA = ROOT / "tests" / "data"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def older(tmp_path: Path, name: str, **changes: str) -> Path:
    """Return a model directory with the card that 0.2 wrote."""
    folder = Path(shutil.copytree(DATA / name, tmp_path / name))
    content = json.loads((folder / "osrerank.json").read_text("utf-8"))
    (folder / "osrerank.json").write_text(json.dumps({**content, "version": 1, **changes}))
    return folder


def test_variables_and_models_have_their_successors_and_secrets_are_not_shown() -> None:
    assert list(changes_from_02({"OSRERANK_VECTORS_MB": "512", "OSRERANK_MODEL": "osrerank/minilm-l6"})) == []
    found = dict(changes_from_02({"osrerank_states_mb": "512", "OSRERANK_MODEL": "osrerank/mono-small"}))
    assert found["osrerank_states_mb"] == "set OSRERANK_VECTORS_MB"
    assert "osrerank/minilm-l6" in found["OSRERANK_MODEL=osrerank/mono-small"]
    assert "hush" not in str(list(changes_from_02({"OSRERANK_STATES_KEY": "hush-hush-hush-hush"})))


def test_the_settings_file_is_read_by_its_tables() -> None:
    Path("osrerank.toml").write_text('[rerank]\npipeline = "mono-duo"\n[index."a*".rerank]\nvia = "x"\ndepth = 5\n')
    (pipeline, via) = changes_from_02({})
    assert pipeline.where == 'osrerank.toml [rerank] pipeline = "mono-duo"'
    assert pipeline.now.startswith('write "vectors-duo"')
    assert via.where == 'osrerank.toml [index."a*".rerank] via'
    Path("osrerank.toml").write_text("[rerank")
    with pytest.raises(ConfigError, match=r"osrerank\.toml cannot be read as TOML"):
        list(changes_from_02({}))


def test_mono_stays_what_a_cross_encoder_runs(tmp_path: Path) -> None:
    Path("osrerank.toml").write_text('[rerank]\npipeline = "mono"\n')
    model = older(tmp_path, "tiny-bert-one-label", kind="mono", layout="standard")
    (card,) = changes_from_02({}, str(model))
    assert card.where == str(model / "osrerank.json")
    assert "\"kind\": \"cross-encoder\" for kind 'mono' and layout 'standard'" in card.now


def test_the_command_works_where_the_old_variables_stop_all_others(monkeypatch, capsys):
    monkeypatch.setenv("OSRERANK_STATES", "off")
    main(["doctor", "--upgrade"])
    assert capsys.readouterr().out == "OSRERANK_STATES: set OSRERANK_VECTORS\n"


def test_a_secret_file_of_02_is_refused_with_its_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "osrerank_states_key").write_text("a key of at least sixteen characters")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="osrerank_states_key is not a setting; set OSRERANK_VECTORS_KEY"):
        Settings.load()
