"""Commands on an index whose model the settings file names."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank import connect
from osrerank.cli import cli
from osrerank.cli.settings_file import write_index_settings
from osrerank.settings import Settings
from osrerank.settings_file import HttpSettings
from tests.rerank_server import server_file

DATA = Path(__file__).parents[2] / "data"
ENCODER, SCORER = "tiny-bert-bi-encoder", "tiny-bert-one-label"


@pytest.fixture
def osrerank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    for model in (ENCODER, SCORER):
        shutil.copytree(DATA / model, tmp_path / model)
    Path("osrerank.toml").write_text(f'[index."shop-*"]\nmodel = "./{ENCODER}"\n[index.papers]\nmodel = "{SCORER}"\n')
    with connect(f"embedded:{tmp_path / 'data'}") as client:
        for index in ("shop-de", "papers"):
            for number in range(3):
                client.index(index=index, id=str(number), body={"text": f"a note {number} about blood"})
            client.indices.refresh(index=index)

    def run(*arguments):
        return CliRunner().invoke(cli, ["--url", f"embedded:{tmp_path / 'data'}", *arguments])

    return run


def found(outcome):
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def model_of(outcome):
    return found(outcome)["rerank"]["stages"][0]["model"]


def test_search_uses_the_model_of_the_index_or_of_the_option(osrerank):
    search = ("search", "note", "--json", "--index")
    assert model_of(osrerank(*search, "shop-de")) == ENCODER
    assert model_of(osrerank(*search, "papers")) == SCORER
    outcome = osrerank("--model", f"./{SCORER}", *search, "shop-de")
    assert model_of(outcome) == SCORER
    warning = f"--model ./{SCORER} replaces the settings file's models of shop-*, papers"
    assert warning in outcome.stderr


def test_vectors_run_and_doctor_use_the_indexs_model(osrerank, tmp_path):
    assert found(osrerank("--json", "vectors", "build", "--index", "shop-de"))["encoded"] == 3
    assert found(osrerank("--json", "vectors", "status", "--index", "shop-de"))["share"] == 1
    refused = osrerank("vectors", "build", "--index", "papers")
    assert "only bi-encoders" in str(refused.exception)
    (tmp_path / "queries.tsv").write_text("1\tblood\n", "utf-8")
    for index, model in (("shop-de", ENCODER), ("papers", SCORER)):
        run = osrerank("run", "--queries", "queries.tsv", "--index", index, "--output", f"{index}.run")
        assert run.exit_code == 0, run.output
        assert f'"{model}"' in (tmp_path / f"{index}.run.jsonl").read_text("utf-8")
        findings = {
            finding["part"]: finding for finding in found(osrerank("--json", "doctor", "--index", index))["findings"]
        }
        assert findings["model"]["facts"]["model"] == model


def test_settings_written_by_advise_keep_the_rerank_server(tmp_path):
    file = server_file(tmp_path, "https://rerank.example", dialect="jina", batch=7)
    write_index_settings(file, "made by a test", "notes", {"depth": 20})
    loaded = HttpSettings.load(Settings.load(settings_file=file))
    assert loaded == HttpSettings(url="https://rerank.example", dialect="jina", batch=7)


def test_settings_written_by_advise_keep_the_models_of_indices(osrerank, tmp_path):
    file = tmp_path / "osrerank.toml"
    write_index_settings(file, "made by a test", "shop-*", {"depth": 20})
    assert file.read_text("utf-8") == (
        f'# made by a test\n\n[index."shop-*"]\nmodel = "./{ENCODER}"\n\n[index."shop-*".rerank]\ndepth = 20\n\n'
        f'[index."papers"]\nmodel = "{SCORER}"\n'
    )
    assert model_of(osrerank("search", "note", "--json", "--index", "shop-de")) == ENCODER
