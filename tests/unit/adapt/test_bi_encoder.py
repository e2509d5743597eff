"""Reading a bi-encoder's files: what sentence-transformers itself saves, and what cannot be adapted."""

import json
from pathlib import Path
from typing import Any

import pytest

from osrerank.adapt.bi_encoder import read_bi_encoder
from osrerank.errors import ModelLoadError
from osrerank.scoring.card import Pooling
from tests.bi_encoders import plain, saved


def change(file: Path, **fields: Any) -> None:
    content = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**content, **fields}), "utf-8")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_what_sentence_transformers_saves(pooling: Pooling, tmp_path: Path) -> None:
    model = read_bi_encoder(saved(tmp_path / "saved", pooling, query="ask: ", document="tell: "))
    assert (model.pooling, model.query_prefix, model.document_prefix) == (pooling, "ask: ", "tell: ")
    assert model.max_tokens == 24
    assert model.config["model_type"] == "bert"


def test_options_replace_the_files(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", query="ask: ")
    model = read_bi_encoder(folder, pooling="mean", query_prefix="", document_prefix="passage: ")
    assert (model.pooling, model.query_prefix, model.document_prefix) == ("mean", "", "passage: ")


def test_a_directory_without_modules_needs_the_pooling(tmp_path: Path) -> None:
    folder = plain(tmp_path / "plain")
    with pytest.raises(ModelLoadError, match="how texts are pooled; name it: --pooling cls or --pooling mean"):
        read_bi_encoder(folder)
    model = read_bi_encoder(folder, pooling="cls")
    assert (model.query_prefix, model.document_prefix, model.max_tokens) == ("", "", 512)


@pytest.mark.parametrize(
    ("file", "fields", "problem"),
    [
        ("config.json", {"model_type": "modernbert"}, "model_type is 'modernbert'; only bert can be adapted"),
        ("config.json", {"model_type": "xlm-roberta"}, "model_type is 'xlm-roberta'"),
        ("config.json", {"model_type": "mpnet"}, "model_type is 'mpnet'"),
        ("config.json", {"auto_map": {"AutoModel": "x.Y"}}, "never runs"),
        ("config.json", {"position_embedding_type": "rope"}, "positions are 'rope'; only GELU and absolute"),
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "only \\[CLS\\] or the mean of all tokens"),
    ],
)
def test_what_cannot_be_adapted_is_refused_by_name(file: str, fields: Any, problem: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    change(folder / file, **fields)
    if "pooling_mode" in fields:
        change(folder / file, pooling_mode_cls_token=False, pooling_mode_mean_tokens=False)
    with pytest.raises(ModelLoadError, match=problem) as raised:
        read_bi_encoder(folder)
    assert str(folder / file) in str(raised.value)


def test_pooling_in_the_form_of_older_versions(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes), "utf-8")
    assert read_bi_encoder(folder).pooling == "mean"
    change(folder / "1_Pooling" / "config.json", pooling_mode_max_tokens=True)
    with pytest.raises(ModelLoadError, match="names pooling_mode_mean_tokens, pooling_mode_max_tokens"):
        read_bi_encoder(folder)


def test_the_length_in_the_form_of_older_versions(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    change(folder / "sentence_bert_config.json", max_seq_length=20)
    assert read_bi_encoder(folder).max_tokens == 20


def test_prefixes_that_the_mean_leaves_out_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", "mean", query="ask: ")
    change(folder / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(ModelLoadError, match="leaves prefixes out of the mean"):
        read_bi_encoder(folder)
    assert read_bi_encoder(folder, query_prefix="").query_prefix == ""


def test_other_modules_are_refused_by_name(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    with pytest.raises(ModelLoadError, match="has a module Dense; only Transformer, Pooling and Normalize"):
        read_bi_encoder(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    folder = plain(tmp_path / "plain")
    (folder / name).unlink()
    with pytest.raises(ModelLoadError, match=r"safetensors" if "safe" in name else name):
        read_bi_encoder(folder, pooling="cls")


@pytest.mark.parametrize("content", ["{}", "[{}]", "[1]", "nothing"])
def test_bad_modules_are_an_error_with_the_file(content: str, tmp_path: Path) -> None:
    folder = plain(tmp_path / "plain")
    (folder / "modules.json").write_text(content, "utf-8")
    with pytest.raises(ModelLoadError, match=r"modules\.json"):
        read_bi_encoder(folder)
