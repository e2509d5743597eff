"""A document's vector does not depend on what computes it: torch and ONNX Runtime fill one store in turns."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from osrerank import connect
from osrerank.indexing import build_vectors
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.vectors.record import ROUNDED
from osrerank.scoring.vectors.records import model_key_of
from osrerank.scoring.vectors.scorer import BiEncoderScorer
from osrerank.scoring.vectors.store import MemoryStore
from osrerank.settings import Settings
from tests.bi_encoders import plain

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

from osrerank.export.export_model import ExportOptions, export_model
from tests.unit.scoring.vectors.test_scorer import DOCUMENTS, MONO, QUERY

UNIQUE = list(dict.fromkeys(DOCUMENTS))
WAYS = (("onnx", "auto"), ("torch", "fp32"), ("torch", "bf16"))


@pytest.fixture(scope="module", params=["cls", "mean"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    options = ExportOptions(pooling=request.param, precision="fp32", keep_weights=True)
    export_model(plain(folder / "plain"), folder / "made", options)
    return folder / "made"


@pytest.fixture
def scorers(directory: Path) -> Iterator[list[BiEncoderScorer]]:
    """The model with each backend and dtype, none of which keeps vectors itself."""
    settings = Settings(vectors="off")
    loaded = [load_scorer(str(directory), backend=name, dtype=dtype, settings=settings) for name, dtype in WAYS]
    assert all(isinstance(scorer, BiEncoderScorer) for scorer in loaded)
    yield loaded  # type: ignore[misc] # checked
    for scorer in loaded:
        scorer.close()


def test_keys_and_identities_are_the_same(scorers: list[BiEncoderScorer]) -> None:
    assert len({scorer.identity for scorer in scorers}) == 1
    assert len({tuple(scorer.keys_of(DOCUMENTS)) for scorer in scorers}) == 1
    assert len({scorer.backend.precision for scorer in scorers}) == 2


def test_each_reads_what_the_others_wrote(scorers: list[BiEncoderScorer]) -> None:
    store = MemoryStore(100_000_000)
    share = -(-len(UNIQUE) // len(scorers))
    for turn, scorer in enumerate(scorers):
        scorer.remember(UNIQUE[turn * share : (turn + 1) * share], store)
    found = [scorer.score(QUERY, DOCUMENTS, MONO, vectors=store) for scorer in scorers]
    assert [(one.encoded, one.known, one.reached) for one in found] == [(0, len(DOCUMENTS), len(DOCUMENTS))] * 3
    for one in found[1:]:
        np.testing.assert_allclose(one.values / 20, found[0].values / 20, atol=0.1)  # 20: the calibration's scale


@pytest.mark.parametrize(("way", "tolerance"), [(WAYS[1], 2e-4), (WAYS[2], 0.1)], ids=["fp32", "bf16"])
def test_vectors_are_the_same_up_to_rounding(directory: Path, way: tuple[str, str], tolerance: float) -> None:
    settings = Settings(vectors="off", vectors_profile="exact")
    values = []
    for backend, dtype in (WAYS[0], way):
        scorer = load_scorer(str(directory), backend=backend, dtype=dtype, settings=settings)
        values.append(scorer.score(QUERY, DOCUMENTS, MONO).values / 20)
        scorer.close()
    np.testing.assert_allclose(values[1], values[0], atol=tolerance)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_too(scorers: list[BiEncoderScorer]) -> None:
    store = MemoryStore(100_000_000)
    scorers[2].remember(UNIQUE, store)
    expected, found = scorers[0].score(QUERY, DOCUMENTS, MONO), scorers[0].score(QUERY, DOCUMENTS, MONO, vectors=store)
    assert found.encoded == 0
    np.testing.assert_allclose(found.values / 20, expected.values / 20, atol=0.1)


def test_weights_without_a_graph_have_the_key_of_the_graph_that_was_exported_from_them(
    directory: Path, tmp_path: Path
) -> None:
    export_model(directory, tmp_path / "int8", ExportOptions(precision="int8"))
    keys = {model_key_of(folder, read_card(folder), ROUNDED) for folder in (directory, tmp_path / "int8")}
    assert len(keys) == 1


def test_a_card_of_02_has_the_keys_of_02(directory: Path) -> None:
    card = ModelCard(**{**{name: getattr(read_card(directory), name) for name in ModelCard.__slots__}, "weights": ""})
    graph, tokenizer = (
        hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in ("onnx/model.onnx", "tokenizer.json")
    )
    parts = (graph, tokenizer, "0", card.document_prefix, str(card.max_tokens), "4.0/8")
    assert model_key_of(directory, card, ROUNDED) == hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def test_an_index_is_built_in_torch_and_searched_with_its_graph(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url, model=str(directory), backend="torch") as building:
        lines = [line for n, text in enumerate(DOCUMENTS[1:]) for line in ({"index": {"_id": str(n)}}, {"text": text})]
        building.bulk(index="notes", body=lines, refresh=True)
        done = build_vectors(building, "notes")
        assert done.texts > done.documents == done.encoded  # the long one's passages are equal
        assert build_vectors(building, "notes").encoded == 0
    with connect(url, model=str(directory)) as client:
        (stage, *_) = client.search(QUERY, index="notes", rerank={"depth": 20})["rerank"]["stages"]
    assert (stage["name"], stage["kind"]) == ("vectors", "bi-encoder")
    assert (stage["encoded"], stage["known"]) == (0, stage["inferences"])
    assert stage["known"] > 10
