"""Reading a bi-encoder's files: what sentence-transformers itself saves, and what cannot be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.bi_encoder import read_bi_encoder
from osrerank.scoring.card import Pooling
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_scorer
from tests.bi_encoders import plain, saved
from tests.hub import files_of, osrerank_at, running_hub

pytest.importorskip("torch")
pytest.importorskip("onnx")

from osrerank.export.export_model import ExportOptions, export_model

QUERY = "what causes low blood pressure"
DOCUMENTS = ["blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!"]
PROMPTS = {"query": "search : ", "document": "this is : "}


def change(file: Path, **fields: Any) -> None:
    content = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**content, **fields}), "utf-8")


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "fields", "problem"),
    [
        ("config.json", {"model_type": "modernbert"}, "model_type is 'modernbert'; only bert can be exported"),
        ("config.json", {"model_type": "xlm-roberta"}, "model_type is 'xlm-roberta'"),
        ("config.json", {"model_type": "mpnet"}, "model_type is 'mpnet'"),
        ("config.json", {"auto_map": {"AutoModel": "x.Y"}}, "never runs"),
        ("config.json", {"position_embedding_type": "rope"}, "positions are 'rope'; only GELU and absolute"),
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "only \\[CLS\\] or the mean of all tokens"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(file: str, fields: Any, problem: str, tmp_path: Path) -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_its_scores_are_the_cosines_of_sentence_transformers(pooling: Pooling, backend: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", pooling, **PROMPTS)
    export_model(folder, tmp_path / "made", ExportOptions(precision="fp32", keep_weights=True))
    scorer = load_scorer(str(tmp_path / "made"), backend=backend)
    logits = scorer.score(QUERY, DOCUMENTS, [(place,) for place in range(4)]).values
    raw = (logits - scorer.encoder.card.calibration.offset) / scorer.encoder.card.calibration.scale
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode(DOCUMENTS, prompt_name="document") @ theirs.encode(QUERY, prompt_name="query")
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(raw, expected, atol=1e-5)


def test_its_card_has_what_the_files_say_and_defaults(tmp_path: Path) -> None:
    export_model(saved(tmp_path / "saved", "cls", **PROMPTS), tmp_path / "made")
    card = read_card(tmp_path / "made")
    assert (card.kind, card.pooling, card.max_tokens, card.max_query_tokens) == ("bi-encoder", "cls", 24, 24)
    assert (card.query_prefix, card.document_prefix) == (PROMPTS["query"], PROMPTS["document"])
    assert card.first_pass_weight == pytest.approx(0.1 * card.calibration.scale)
    assert dict(card.onnx) == {"int8": "onnx/model_int8.onnx"}


@pytest.mark.slow
@pytest.mark.long
def test_one_of_the_hub_is_fetched_with_what_says_how_it_pools(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", "cls", **PROMPTS)
    with running_hub("somebody/encoder", files_of(folder)) as hub:
        done = osrerank_at(hub.url, tmp_path, "export", "somebody/encoder", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    assert {"modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"} <= set(hub.fetched)
    assert read_card(tmp_path / "made").query_prefix == PROMPTS["query"]
