"""A document's vector does not depend on what computes it: torch and ONNX Runtime fill one store in turns."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osrerank import connect
from osrerank.indexing.build import build_vectors
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_model, load_scorer
from osrerank.testing import ArithmeticEncoder
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import ROUNDED
from osrerank.vectors.store import MemoryStore
from tests.articles import fill
from tests.bi_encoders import plain

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

from osrerank.export.export_model import ExportOptions, export_model
from tests.unit.vectors.test_documents import DOCUMENTS, MONO, QUERY

UNIQUE = list(dict.fromkeys(DOCUMENTS))
WAYS = (("onnx", "auto"), ("torch", "fp32"), ("torch", "bf16"))


@pytest.fixture(scope="module", params=["cls", "mean"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    options = ExportOptions(pooling=request.param, precision="fp32", keep_weights=True)
    export_model(plain(folder / "plain"), folder / "made", options)
    return folder / "made"


@pytest.fixture
def scorers(directory: Path) -> Iterator[list[EncoderScorer]]:
    """The model with each backend and dtype, and one store for all."""
    store = MemoryStore(100_000_000)
    encoders = [load_model(str(directory), backend=name, dtype=dtype) for name, dtype in WAYS]
    scorers = [EncoderScorer(DocumentVectors(encoder, VectorStorage(store, ROUNDED))) for encoder in encoders]
    yield scorers
    for scorer in scorers:
        scorer.close()


def encoder_of(directory: Path, card: ModelCard) -> BiEncoder:
    return BiEncoder(directory, card, InputBuilder.load(directory, card), ArithmeticEncoder())


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def test_keys_and_identities_are_the_same(scorers: list[EncoderScorer]) -> None:
    assert len({scorer.identity for scorer in scorers}) == 1
    assert len({tuple(scorer.vectors.keys_of(DOCUMENTS)) for scorer in scorers}) == 1
    assert len({scorer.encoder.backend.precision for scorer in scorers}) == 2


def test_each_reads_what_the_others_wrote(scorers: list[EncoderScorer]) -> None:
    share = -(-len(UNIQUE) // len(scorers))
    for turn, scorer in enumerate(scorers):
        scorer.vectors.remember(UNIQUE[turn * share : (turn + 1) * share])
    found = [scorer.score(QUERY, DOCUMENTS, MONO) for scorer in scorers]
    assert [(one.encoded, one.known, one.reached) for one in found] == [(0, len(DOCUMENTS), len(DOCUMENTS))] * 3
    for one in found[1:]:
        np.testing.assert_allclose(one.values / 20, found[0].values / 20, atol=0.1)  # 20: the calibration's scale


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_too(directory: Path, scorers: list[EncoderScorer]) -> None:
    alone = load_scorer(str(directory), backend="onnx")
    expected = alone.score(QUERY, DOCUMENTS, MONO)
    alone.close()
    scorers[2].vectors.remember(UNIQUE)
    found = scorers[0].score(QUERY, DOCUMENTS, MONO)
    assert found.encoded == 0
    np.testing.assert_allclose(found.values / 20, expected.values / 20, atol=0.1)


def test_weights_without_a_graph_have_the_key_of_the_graph_that_was_exported_from_them(
    directory: Path, tmp_path: Path
) -> None:
    export_model(directory, tmp_path / "int8", ExportOptions(precision="int8"))
    assert len({encoder_of(folder, read_card(folder)).key for folder in (directory, tmp_path / "int8")}) == 1


def test_a_card_of_02_has_the_keys_of_02(directory: Path) -> None:
    card = replace(read_card(directory), weights="")
    graph, tokenizer = (
        hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in ("onnx/model.onnx", "tokenizer.json")
    )
    model = "\0".join((graph, tokenizer, "0", card.document_prefix, str(card.max_tokens), "4.0/8"))
    vectors = DocumentVectors(encoder_of(directory, card), VectorStorage(bits=ROUNDED))
    assert vectors.keys_of(["low"]) == [digest(digest(model.encode()) + digest(b"low"))]


def test_an_index_is_built_in_torch_and_searched_with_its_graph(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url, model=str(directory), backend="torch") as building:
        fill(building, "notes", [{"text": text} for text in DOCUMENTS[1:]])
        done = build_vectors(building, "notes")
        assert done.texts > done.documents == done.encoded  # the long one's passages are equal
        assert build_vectors(building, "notes").encoded == 0
    with connect(url, model=str(directory)) as client:
        (stage, *_) = client.search(QUERY, index="notes", rerank={"depth": 20})["rerank"]["stages"]
    assert (stage["name"], stage["kind"]) == ("vectors", "bi-encoder")
    assert (stage["encoded"], stage["known"]) == (0, stage["inferences"])
    assert stage["known"] > 10
