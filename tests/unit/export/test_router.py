"""sentence-transformers' Router: queries are encoded by other modules than documents."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.registry import load_model
from tests.bi_encoders import TINY, plain

pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
QUERIES, DOCUMENTS = ["low blood pressure", ""], ["low blood pressure is caused by the heart", "a wing " * 40]


def opened(directory: Path, backend: str = "onnx") -> BiEncoder:
    model = load_model(str(directory), backend=backend, threads=1)
    assert isinstance(model, BiEncoder)
    return model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A table for queries, and the tiny BERT for documents."""
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer
    from tokenizers import Tokenizer

    weights = np.random.default_rng(5).standard_normal((600, 32)).astype(np.float32)
    table = StaticEmbedding(Tokenizer.from_file(str(TINY / "tokenizer.json")), weights)
    encoder = Transformer(str(plain(tmp_path / "plain")), max_seq_length=24)
    router = Router.for_query_document(query_modules=[table], document_modules=[encoder, Pooling(32, "mean")])
    prompts = {"query": "query: ", "document": "passage: "}
    sentence_transformer = library.SentenceTransformer(modules=[router, Normalize()], prompts=prompts, device="cpu")
    sentence_transformer.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    return tmp_path / "saved"


def test_routed_queries_and_documents_have_the_vectors_of_sentence_transformers(saved: Path, tmp_path: Path) -> None:
    model = library.SentenceTransformer(str(saved), device="cpu")
    queries, documents = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
    export_model(saved, tmp_path / "made", ExportOptions(precision="fp32", keep_weights=True))
    for backend in ("onnx", "torch"):
        with closing(opened(tmp_path / "made", backend)) as encoder:
            np.testing.assert_allclose(encoder.encode(QUERIES, "query").rows, queries, atol=1e-6)
            np.testing.assert_allclose(encoder.encode(DOCUMENTS, "document").rows, documents, atol=1e-6)


def test_another_query_model_changes_scores_but_not_document_vectors(saved: Path, tmp_path: Path) -> None:
    export_model(saved, tmp_path / "one", ExportOptions(precision="fp32"))
    export_model(saved, tmp_path / "other", ExportOptions(precision="fp32", query_prefix="search: "))
    with closing(opened(tmp_path / "one")) as first_folder, closing(opened(tmp_path / "other")) as second_folder:
        assert first_folder.key == second_folder.key
        assert first_folder.identity != second_folder.identity


def test_a_copy_without_the_query_model_is_refused(saved: Path, tmp_path: Path) -> None:
    export_model(saved, tmp_path / "made")
    shutil.rmtree(tmp_path / "made" / "query")
    with pytest.raises(ModelLoadError, match=r"osrerank\.json, the card of the query model, is missing"):
        opened(tmp_path / "made")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"structure": {"document": []}},
            "the route 'query' or the type of one of its modules cannot be read: 'query' is missing",
        ),
        ({"parameters": {"route_mappings": {"('query', None)": "document"}}}, "route_mappings is"),
    ],
)
def test_unsupported_routes_are_refused_by_file_and_field(
    change: object, problem: str, saved: Path, tmp_path: Path
) -> None:
    file = saved / "router_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(ModelLoadError, match=problem) as raised:
        export_model(saved, tmp_path / "made")
    assert str(file) in str(raised.value)
    assert not (tmp_path / "made").exists()
