"""Bi-encoders that another library saved are loaded by their name, as their files and their published cards say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.scoring.backends.onnx import compute_vector
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card_file import read_card
from osrerank.scoring.modular.head import Head, HeadStep, Mode
from osrerank.scoring.registry import load_model
from osrerank.types import is_encoder
from tests.bi_encoders import plain
from tests.servers import ROOT
from tools.models.encoder_parity import SAVED
from tools.models.encoders import read_forms, restore_checkpoint

pytest.importorskip("onnx")
from tests.published import in_cache, published

E5 = "intfloat/multilingual-e5-base"
TEXT = "low blood pressure"
LOADED_BY_NAME = """
import sys
from osrerank.scoring.registry import load_model
model = load_model(sys.argv[1])
print(repr((model.card.query_prefix, model.card.document_prefix, model.card.pooling, "torch" in sys.modules)))
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def encoder(folder: Path, backend: str = "auto") -> BiEncoder:
    model = load_model(str(folder), backend=backend, threads=1)
    assert isinstance(model, BiEncoder)
    assert is_encoder(model)
    return model


@pytest.mark.long
def test_a_graph_of_the_hub_is_read_by_name_without_torch_and_with_its_cards_prefixes(tmp_path: Path) -> None:
    published(in_cache(tmp_path / "hub", E5))
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", LOADED_BY_NAME, E5]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == repr(("query: ", "passage: ", "mean", False)), done.stderr


@pytest.mark.parametrize("output", ["last_hidden_state", "token_embeddings"])
def test_vectors_of_a_graph_that_ends_with_the_states_are_pooled(output: str, tmp_path: Path) -> None:
    shipped, loaded = load_model("osrerank/minilm-l6", threads=1), encoder(published(tmp_path / "made", output=output))
    assert is_encoder(shipped)
    np.testing.assert_allclose(
        loaded.encode([TEXT], "document").rows, shipped.encode([TEXT], "document").rows, atol=1e-6
    )


def test_a_saved_encoders_graph_is_checked_once(tmp_path: Path) -> None:
    folder = published(tmp_path / "made")
    encoder(folder)
    (record,) = (tmp_path / "cache").rglob("self-check.json")
    assert "of 50 answering paragraphs before random ones" in json.loads(record.read_text("utf-8"))["passed"]
    written_at = record.stat().st_mtime_ns
    encoder(folder)
    assert record.stat().st_mtime_ns == written_at


def test_a_graph_with_another_models_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = published(tmp_path / "made")
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    words = [piece for piece in vocabulary if not piece.startswith("[")]
    vocabulary.update(zip(words, [vocabulary[word] for word in reversed(words)], strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(ModelLoadError, match="does not rank like a trained model: it puts too few answering"):
        encoder(folder)
    assert not list((tmp_path / "cache").rglob("self-check.json"))


def test_a_graph_without_states_is_refused_with_the_names_that_it_gives(tmp_path: Path) -> None:
    expected = "has the outputs pooler_output, but the graph of a bi-encoder model needs vector or last_hidden"
    with pytest.raises(ModelLoadError, match=expected):
        encoder(published(tmp_path / "made", output="pooler_output"))


def test_graphs_with_the_same_weights_and_other_poolings_do_not_share_vectors(tmp_path: Path) -> None:
    keys = {encoder(published(tmp_path / pooling, pooling=pooling)).key for pooling in ("mean", "max")}
    assert len(keys) == 2


def test_weights_beside_a_graph_are_part_of_the_key(tmp_path: Path) -> None:
    model = encoder(published(tmp_path / "made"))
    (tmp_path / "made" / "onnx" / "model.onnx_data").write_bytes(b"others")
    assert model.key != encoder(tmp_path / "made").key


def test_safetensors_give_the_vectors_of_an_export(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from osrerank.export.export_model import ExportOptions, export_model

    for name in ("BERT, CLS, Dense", "XLM-R, mean, prompts"):
        folder = restore_checkpoint(read_forms(SAVED / "sentence-transformers-6.2.json")[name], tmp_path / name)
        export_model(folder, tmp_path / f"{name} exported", ExportOptions(precision="fp32"))
        rows = [
            encoder(model_folder).encode([TEXT], "document").rows
            for model_folder in (folder, tmp_path / f"{name} exported")
        ]
        np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)


def test_a_graph_is_not_used_if_modules_with_weights_follow(tmp_path: Path) -> None:
    folder = restore_checkpoint(
        read_forms(SAVED / "sentence-transformers-6.2.json")["BERT, CLS, Dense"], tmp_path / "made"
    )
    (folder / "model.onnx").write_bytes(b"ends before the Dense")
    assert not read_card(folder).onnx


def test_encoders_without_module_files_get_their_published_pooling(tmp_path: Path) -> None:
    folder = plain(in_cache(tmp_path, "BAAI/bge-m3"))
    assert (read_card(folder).kind, read_card(folder).pooling) == ("bi-encoder", "cls")
    with pytest.raises(ModelLoadError, match="osrerank export"):
        read_card(plain(in_cache(tmp_path, "somebody/else")))


def test_each_pooling_of_token_states_by_hand() -> None:
    states = np.array([[3, 0], [0, 1], [0, 5]], dtype=np.float32)
    expected = {"cls": (3, 0), "mean": (1, 2), "max": (3, 5), "weightedmean": (0.5, 17 / 6), "lasttoken": (0, 5)}
    assert expected.keys() == {*get_args(Mode)}
    for mode in get_args(Mode):
        np.testing.assert_allclose(compute_vector(states, Head((), (mode,)))[0], expected[mode], rtol=1e-6)
    steps = (HeadStep("first", size=1), HeadStep("unit"))
    np.testing.assert_allclose(compute_vector(states, Head(steps, ("mean",))), [[1]])
