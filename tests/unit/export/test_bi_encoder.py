"""Export of bi-encoders: modules, pooling, prompts and similarity in the card, and refused models."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card import CHOICES, ModelCard, Pooling
from osrerank.scoring.card_file import read_card
from osrerank.scoring.modular.head import HeadStep
from osrerank.scoring.registry import load_model
from osrerank.scoring.saved_encoder import PUBLIC_MODELS_FILE, EncoderOverrides, is_bi_encoder, read_bi_encoder
from osrerank.types import Encoder, is_encoder
from tests.bi_encoders import plain, saved
from tools.models.encoder_parity import SAVED
from tools.models.encoders import E5_PROMPTS, read_forms, restore_checkpoint

FORMS = read_forms(SAVED / "sentence-transformers-6.2.json")
PROMPTS = {"query": "search : ", "document": "this is : "}
MODEL, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
LIBRARY = "sentence_transformers.models"


def change(file: Path, **fields: Any) -> None:
    content = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**content, **fields}), "utf-8")


def card_of(folder: Path, **given: Any) -> ModelCard:
    return read_bi_encoder(folder, "made", EncoderOverrides(**given)).card


def encoder(folder: Path, backend: str) -> Encoder:
    model = load_model(str(folder), backend=backend, threads=1)
    assert is_encoder(model)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT with [CLS] pooling, Dense and Normalize."""
    return restore_checkpoint(FORMS["BERT, CLS, Dense"], tmp_path / "saved")


def test_modules_dimensions_and_similarity_are_in_the_card(tmp_path: Path) -> None:
    dense = card_of(restore_checkpoint(FORMS["BERT, CLS, Dense"], tmp_path / "dense"))
    assert dense.modules == (HeadStep("dense", "2_Dense.linear", "tanh"),)
    assert (dense.dimensions, dense.head) == (24, "cosine")
    few = card_of(restore_checkpoint(FORMS["BERT, mean, 12 of 32 dimensions"], tmp_path / "few"))
    assert (few.modules, few.dimensions, few.pooling, few.max_tokens) == ((), 12, "mean", 180)
    product = card_of(restore_checkpoint(FORMS["MPNet, CLS, dot product"], tmp_path / "product"))
    assert (product.head, product.calibration.scale, product.first_pass_weight) == ("dot", 1, 0)
    both = card_of(restore_checkpoint(FORMS["ModernBERT, CLS, dot product of 12 dimensions"], tmp_path / "both"))
    assert (both.head, both.modules, both.dimensions) == ("dot", (HeadStep("unit"),), 12)
    folder = restore_checkpoint(FORMS["BERT, mean"], tmp_path / "saved")
    change(folder / MODEL, similarity_fn_name="dot")
    assert (card_of(folder).head, card_of(folder).modules) == ("cosine", ())


def test_without_safetensors_torch_reads_the_modules_of_the_graph(folder: Path, tmp_path: Path) -> None:
    for precision, most in (("fp32", 1e-6), ("int8", 0.05)):
        path = tmp_path / precision
        export_model(folder, path, ExportOptions(precision=precision))
        onnx, torch = (
            encoder(path, name).encode(["low blood pressure"], "document").rows for name in ("onnx", "torch")
        )
        np.testing.assert_allclose(torch, onnx, atol=most)


def test_graphs_that_give_the_same_vectors_share_stored_vectors(folder: Path, tmp_path: Path) -> None:
    """A key tells dimensions and modules apart, and not the backend or the precision."""
    export_model(folder, tmp_path / "int8", ExportOptions(keep_weights=True))
    export_model(folder, tmp_path / "fp32", ExportOptions(precision="fp32"))
    export_model(folder, tmp_path / "few", ExportOptions(dimensions=8))
    key = encoder(tmp_path / "int8", "onnx").key
    assert key == encoder(tmp_path / "int8", "torch").key == encoder(tmp_path / "fp32", "onnx").key
    change(folder / DENSE, activation_function="torch.nn.modules.activation.ReLU")
    export_model(folder, tmp_path / "relu")
    assert len({key, *(encoder(tmp_path / name, "onnx").key for name in ("few", "relu"))}) == 3


def test_a_card_whose_dimensions_are_not_the_graphs_is_refused(folder: Path, tmp_path: Path) -> None:
    export_model(folder, tmp_path / "made")
    change(tmp_path / "made" / "osrerank.json", dimensions=8)
    with pytest.raises(ModelLoadError, match="vectors of 24 dimensions, but the card has 8"):
        encoder(tmp_path / "made", "onnx")


def test_prompts_of_queries_and_documents_are_read(tmp_path: Path) -> None:
    folder = restore_checkpoint(FORMS["XLM-R, mean, prompts"], tmp_path / "saved")
    card = card_of(folder)
    assert (card.query_prefix, card.document_prefix) == (E5_PROMPTS["query"], E5_PROMPTS["passage"])
    change(folder / MODEL, prompts={"document": "", "passage": "", "all": "x: "}, default_prompt_name="all")
    assert (card_of(folder).query_prefix, card_of(folder).document_prefix) == ("x: ", "")
    change(folder / MODEL, default_prompt_name="other")
    with pytest.raises(ModelLoadError, match="default_prompt_name is 'other', but prompts has no prompt of that name"):
        card_of(folder)


@pytest.mark.parametrize(
    ("name", "query_prefix", "document_prefix"),
    [
        ("intfloat/multilingual-e5-base", "query: ", "passage: "),
        ("intfloat/e5-large-v2", "query: ", "passage: "),
        ("BAAI/bge-base-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("thenlper/gte-base", "", ""),
    ],
)
def test_a_public_model_has_the_prefixes_of_its_card(
    name: str, query_prefix: str, document_prefix: str, tmp_path: Path
) -> None:
    folder = tmp_path / f"models--{name.replace('/', '--')}" / "snapshots" / "0f1e"
    folder.parent.mkdir(parents=True)
    restore_checkpoint(FORMS["BERT, mean"], folder)
    card = card_of(folder)
    assert (card.query_prefix, card.document_prefix) == (query_prefix, document_prefix)
    assert card_of(folder, query_prefix="").query_prefix == ""
    change(folder / MODEL, prompts={"query": "of the files: "})
    assert (card_of(folder).query_prefix, card_of(folder).document_prefix) == ("of the files: ", "")


def test_each_row_of_public_models_has_its_source() -> None:
    models = tomllib.loads(PUBLIC_MODELS_FILE.read_text("utf-8"))["models"]
    names = [name for model in models for name in model["names"]]
    assert len(names) == len({*names})
    for model in models:
        assert model["source"].startswith("https://huggingface.co/")
        assert model["source"].removeprefix("https://huggingface.co/").partition(":")[0] in model["names"]
        assert model.keys() <= {"names", "query_prefix", "document_prefix", "pooling", "max_tokens", "source"}
        assert model["pooling"] in CHOICES["pooling"]


def test_export_options_override_the_files(folder: Path) -> None:
    change(folder / MODEL, prompts=PROMPTS)
    card = card_of(folder, pooling="mean", query_prefix="", document_prefix="passage: ", dimensions=8)
    assert (card.pooling, card.query_prefix, card.document_prefix, card.dimensions) == ("mean", "", "passage: ", 8)
    with pytest.raises(ConfigError, match="vectors have only 24 dimensions"):
        card_of(folder, dimensions=25)


def test_a_directory_without_modules_needs_the_pooling(tmp_path: Path) -> None:
    folder = plain(tmp_path / "plain")
    assert not is_bi_encoder(folder)
    with pytest.raises(
        ModelLoadError, match="how texts are pooled; choose one: --pooling cls, mean, max, weightedmean, lasttoken"
    ):
        card_of(folder)
    card = card_of(folder, pooling="cls")
    assert (card.query_prefix, card.document_prefix, card.max_tokens) == ("", "", 512)


@pytest.mark.parametrize(
    ("file", "fields", "problem"),
    [
        ("config.json", {"model_type": "longformer"}, "model_type is 'longformer'; in an encoder it must be"),
        ("config.json", {"auto_map": {"AutoModel": "x.Y"}}, "never runs"),
        (
            "config.json",
            {"position_embedding_type": "rope"},
            "position_embedding_type is 'rope'; for a bert bi-encoder",
        ),
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (POOLING, {"pooling_mode": "mean_sqrt_len_tokens"}, "pooling_mode is 'mean_sqrt_len_tokens'"),
        (POOLING, {"pooling_mode": ["cls", "mean"]}, "pooling_mode is cls, mean"),
        (POOLING, {"pooling_mode": None, "pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        (POOLING, {"temperature": 2}, "temperature is 2, but osrerank does not know this field of a Pooling"),
        (DENSE, {"use_residual": True}, "use_residual is True, but osrerank does not know this field of a Dense"),
        (DENSE, {"activation_function": "torch.nn.modules.activation.PReLU"}, "activation_function is"),
        (MODEL, {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'euclidean'; it must be one of"),
        (MODEL, {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'; a bi-encoder's must be"),
        (TRANSFORMER, {"query_expansion": {"length": 32}}, "query_expansion is"),
        (TRANSFORMER, {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
    ],
)
def test_unknown_fields_of_a_bi_encoder_are_refused_by_file_and_field(
    file: str, fields: Any, problem: str, folder: Path
) -> None:
    change(folder / file, **fields)
    with pytest.raises(ModelLoadError, match=problem) as raised:
        card_of(folder)
    assert str(folder / file) in str(raised.value)


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        (("Transformer", "Pooling", "CNN"), "module 2 has the type 'sentence_transformers.models.CNN'"),
        (("Transformer", "LSTM"), "module 1 has the type 'sentence_transformers.models.LSTM'"),
        (("Transformer", "Dense", "Pooling"), "after the Transformer comes Dense, Pooling; there must be one Pooling"),
        (("Transformer",), "after the Transformer comes nothing"),
        (("BoW",), "module 0 has the type 'sentence_transformers.models.BoW'"),
    ],
)
def test_unknown_modules_of_a_bi_encoder_are_refused_by_name(
    types: tuple[str, ...], problem: str, folder: Path
) -> None:
    listed = [
        {"path": f"{index}_{kind}" if index else "", "type": f"{LIBRARY}.{kind}"} for index, kind in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    with pytest.raises(ModelLoadError, match=problem) as raised:
        card_of(folder)
    assert str(folder / "modules.json") in str(raised.value)


@pytest.mark.parametrize("content", ["{}", "[{}]", "[1]", "nothing", "[]"])
def test_bad_modules_are_an_error_with_the_file(content: str, folder: Path) -> None:
    (folder / "modules.json").write_text(content, "utf-8")
    with pytest.raises(ModelLoadError, match=r"modules\.json"):
        card_of(folder)


def test_pooling_and_lengths_in_older_and_newer_fields(folder: Path) -> None:
    change(folder / TRANSFORMER, max_seq_length=20)
    assert (card_of(folder).max_tokens, card_of(folder).max_query_tokens) == (20, 20)
    change(folder / TRANSFORMER, max_seq_length=None, query_length=16, document_length=100)
    assert (card_of(folder).max_tokens, card_of(folder).max_query_tokens) == (100, 16)
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (folder / POOLING).write_text(json.dumps(modes), "utf-8")
    assert card_of(folder).pooling == "mean"
    change(folder / POOLING, pooling_mode_max_tokens=True)
    with pytest.raises(ModelLoadError, match="pooling_mode is mean, max"):
        card_of(folder)


def test_lowercasing_is_the_tokenizers(folder: Path) -> None:
    change(folder / TRANSFORMER, do_lower_case=True)
    assert card_of(folder).max_tokens == 180, "its tokenizer makes letters small"
    change(folder / "tokenizer.json", normalizer=None)
    with pytest.raises(ModelLoadError, match="do_lower_case is true; add a normaliser"):
        card_of(folder)


def test_prefixes_that_pooling_leaves_out_are_refused(folder: Path) -> None:
    change(folder / MODEL, prompts=PROMPTS)
    change(folder / POOLING, include_prompt=False)
    with pytest.raises(ModelLoadError, match="include_prompt is false"):
        card_of(folder)
    assert card_of(folder, query_prefix="", document_prefix="").query_prefix == ""
    change(folder / POOLING, pooling_mode="lasttoken")
    assert card_of(folder).query_prefix == PROMPTS["query"], "the last token is no prefix's"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_of_a_bi_encoder_is_named(name: str, tmp_path: Path) -> None:
    folder = plain(tmp_path / "plain")
    (folder / name).unlink()
    with pytest.raises(ModelLoadError, match=r"safetensors" if "safe" in name else name):
        card_of(folder, pooling="cls")


def test_the_card_of_a_published_model_matches_its_files_and_readme(tmp_path: Path, folder: Path) -> None:
    export_model(restore_checkpoint(FORMS["XLM-R, mean, prompts"], tmp_path / "prompts"), tmp_path / "made")
    card = read_card(tmp_path / "made")
    assert (card.kind, card.pooling, card.max_tokens, card.max_query_tokens) == ("bi-encoder", "mean", 180, 180)
    assert card.first_pass_weight == pytest.approx(0.05 * card.calibration.scale)
    assert dict(card.onnx) == {"int8": "onnx/model_int8.onnx"}
    (folder / "README.md").write_text("---\nlanguage:\n- multilingual\n- de\n- zh-TW\n- en\n---\n# Tiny\n", "utf-8")
    assert export_model(folder, tmp_path / "german").languages == ("de", "zh", "en")
    assert read_card(tmp_path / "german").languages == ("de", "zh", "en")


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_model_saved_by_the_installed_sentence_transformers_is_exported(pooling: Pooling, tmp_path: Path) -> None:
    card = card_of(saved(tmp_path / "saved", pooling, query="ask: ", document="tell: "))
    assert (card.pooling, card.query_prefix, card.document_prefix) == (pooling, "ask: ", "tell: ")
    assert card.max_tokens == 24
