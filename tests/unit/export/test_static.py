"""sentence-transformers' StaticEmbedding: a table of tokens' vectors."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.registry import load_model
from osrerank.types import is_encoder
from tests.bi_encoders import TINY

pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
TEXTS = ["low blood pressure is caused by the heart", "a wing", "", "the score and the rank " * 60]
ROWS, WIDTH = 600, 16
"""More rows than int8 leaves as they are."""


def vectors(directory: Path, backend: str) -> np.ndarray:
    with closing(load_model(str(directory), backend=backend, threads=1)) as model:
        assert is_encoder(model)
        return np.concatenate([model.encode(TEXTS, side).rows for side in ("query", "document")])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A random table with a prompt for queries."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    weights = np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype(np.float32)
    table = StaticEmbedding(Tokenizer.from_file(str(TINY / "tokenizer.json")), weights)
    sentence_transformer = library.SentenceTransformer(modules=[table], prompts={"query": "search: "}, device="cpu")
    sentence_transformer.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    return tmp_path / "saved"


def test_static_vectors_equal_those_of_sentence_transformers(saved: Path, tmp_path: Path) -> None:
    model = library.SentenceTransformer(str(saved), device="cpu")
    theirs = np.concatenate([model.encode_query(TEXTS), model.encode_document(TEXTS)])
    unit = theirs / np.maximum(np.linalg.norm(theirs, axis=1, keepdims=True), 1e-12)
    export_model(saved, tmp_path / "fp32", ExportOptions(precision="fp32", keep_weights=True))
    for backend in ("onnx", "torch"):
        np.testing.assert_allclose(vectors(tmp_path / "fp32", backend), unit, atol=1e-6)
    export_model(saved, tmp_path / "int8")
    np.testing.assert_allclose(vectors(tmp_path / "int8", "onnx"), unit, atol=0.01)


def test_model2vecs_rows_weights_and_mapping_are_applied(saved: Path, tmp_path: Path) -> None:
    """As sentence-transformers 6.2 does."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(6)
    rows = rng.standard_normal((50, WIDTH)).astype(np.float32)
    mapping, weights = rng.integers(0, 50, ROWS), rng.random(ROWS)
    expected_rows = (rows[mapping] * weights[:, None]).astype(np.float32)
    for name, parts in {
        "parts": {"embeddings": rows, "mapping": mapping, "weights": weights},
        "whole": {"embedding.weight": expected_rows},
    }.items():
        save_file(parts, saved / "model.safetensors")
        export_model(saved, tmp_path / name, ExportOptions(precision="fp32"))
    np.testing.assert_allclose(vectors(tmp_path / "parts", "onnx"), vectors(tmp_path / "whole", "onnx"), atol=1e-6)


def test_the_tokenizers_limit_cuts_texts_of_static_embeddings(saved: Path, tmp_path: Path) -> None:
    file = saved / "tokenizer.json"
    limit = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "truncation": limit}), "utf-8")
    theirs = library.SentenceTransformer(str(saved), device="cpu").encode_document(TEXTS[:2])
    export_model(saved, tmp_path / "made", ExportOptions(precision="fp32"))
    with closing(load_model(str(tmp_path / "made"), backend="onnx")) as model:
        assert is_encoder(model)
        rows = model.encode(TEXTS[:2], "document").rows
    np.testing.assert_allclose(rows, theirs / np.linalg.norm(theirs, axis=1, keepdims=True), atol=1e-6)


def test_a_sparse_static_embedding_table_is_refused_by_name(saved: Path, tmp_path: Path) -> None:
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.SparseStaticEmbedding"}]
    (saved / "modules.json").write_text(json.dumps(listed), "utf-8")
    with pytest.raises(ModelLoadError, match=r"SparseStaticEmbedding'; it must be .* or StaticEmbedding"):
        export_model(saved, tmp_path / "made")


def test_a_static_embedding_table_of_another_name_is_refused(saved: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"other": np.zeros((4, 4), np.float32)}, saved / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: the file has no tensor 'embedding\.weight'"):
        export_model(saved, tmp_path / "made")
