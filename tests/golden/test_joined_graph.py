"""Models of the layout joined through every backend, against the definition."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.export.quantise import Recipe
from osrerank.scoring.card import Joining, ModelCard
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_scorer

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from tests.joined import add_own_weights, defined, defined_pair  # noqa: E402 - imports torch

TINY = Path(__file__).parents[1] / "data" / "tiny-bert-cross-bias"
QUERY = "what causes low blood pressure"
DOCUMENTS = ["blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!"]
JOININGS = [
    Joining(0),
    Joining(0, rows="all", pooling="mean"),
    Joining(1, -3.0, query_prefix="search: "),
    Joining(2, 0.5),
    Joining(2, -1.0, "all", "cls", 0.25),
    Joining(1, -1.0, "all", "mean", 0.0, "query: ", "passage: "),
    Joining(2, 1.0, "all", "mean", 0.5),
    Joining(2, -1.0, "cls", "cls", 0.25, own_weights=True),
    Joining(1, -1.0, "all", "mean", own_weights=True),
]

JOINS = [set(), {"fp32-queries", "fp32-contexts", "fp32-scores"}, {"fp32-join"}]
"""Keys of a card's graphs beside the encoder's, by the number of joined layers."""


def model(folder: Path, joining: Joining, **changes: object) -> Path:
    """Write the tiny bi-encoder with a card of the layout joined, weights and no graph."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(TINY / name, folder / name)
    if joining.own_weights:
        add_own_weights(folder, joining)
    card = ModelCard("tiny", "cosine", layout="joined", max_tokens=64, max_query_tokens=64, joining=joining)
    write_card(folder, replace(card, **changes))  # type: ignore[arg-type]
    return folder


def values(scorer: LocalScorer, documents: list[str], query: str = QUERY) -> np.ndarray:
    scores = scorer.score(query, documents, [(place,) for place in range(len(documents))])
    assert not scores.failures
    return scores.values


@pytest.fixture(params=JOININGS, ids=str)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return model(tmp_path / "source", request.param)


def expected(source: Path) -> list[float]:
    return [defined(source, QUERY, text, read_card(source).joining) for text in DOCUMENTS]


def test_the_graphs_equal_the_definition(source: Path, tmp_path: Path) -> None:
    card = export_model(source, tmp_path / "fp32", ExportOptions())
    assert set(card.onnx) == {"fp32"} | JOINS[card.joining.layers]
    scorer = load_scorer(str(tmp_path / "fp32"), backend="onnx")
    assert np.ptp(expected(source)) > 0.05
    np.testing.assert_allclose(values(scorer, DOCUMENTS), expected(source), atol=3e-6, rtol=0)


def test_int8_is_near_the_definition(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "int8", ExportOptions(precision="int8", recipe=Recipe(outliers=0)))
    found = values(load_scorer(str(tmp_path / "int8"), backend="onnx"), DOCUMENTS)
    np.testing.assert_allclose(found, expected(source), atol=0.05, rtol=0)  # a random model of 32 channels


def test_torch_equals_the_definition(source: Path) -> None:
    scorer = load_scorer(str(source), backend="torch")
    np.testing.assert_allclose(values(scorer, DOCUMENTS), expected(source), atol=3e-6, rtol=0)


def test_weights_come_back_from_the_graph(source: Path, tmp_path: Path) -> None:
    export_model(source, tmp_path / "fp32", ExportOptions())
    scorer = load_scorer(str(tmp_path / "fp32"), backend="torch")
    np.testing.assert_allclose(values(scorer, DOCUMENTS), expected(source), atol=3e-6, rtol=0)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_score_does_not_depend_on_other_documents_or_queries(precision: str, tmp_path: Path) -> None:
    folder = model(tmp_path / "source", Joining(1, -1.0))
    export_model(folder, tmp_path / "made", ExportOptions(precision=precision))
    scorer = load_scorer(str(tmp_path / "made"), backend="onnx", threads=3)
    together = values(scorer, DOCUMENTS)
    values(scorer, DOCUMENTS, "another one")
    for text, score in zip(DOCUMENTS, together, strict=True):
        assert values(scorer, [text])[0] == score


def test_query_and_document_each_have_the_whole_window(tmp_path: Path) -> None:
    folder = model(tmp_path / "source", Joining(1, -1.0), max_tokens=16, max_query_tokens=16)
    export_model(folder, tmp_path / "fp32", ExportOptions())
    scorer = load_scorer(str(tmp_path / "fp32"), backend="onnx")
    long = " ".join(["wing flow heat"] * 10)
    cut = " ".join(long.split()[:14])  # 16 less [CLS] and [SEP]; a word of these is a piece
    scores = scorer.score(long, [long, cut], [(0,), (1,)])
    assert (scores.truncated, scores.query_truncated) == (1, True)
    joining = read_card(folder).joining
    np.testing.assert_allclose(scores.values, [defined(folder, cut, cut, joining)] * 2, atol=3e-6)


def test_a_missing_join_graph_is_named(tmp_path: Path) -> None:
    folder = model(tmp_path / "source", Joining(1, -1.0))
    card = export_model(folder, tmp_path / "fp32", ExportOptions())
    write_card(tmp_path / "fp32", replace(card, onnx={"fp32": card.onnx["fp32"]}))
    with pytest.raises(ModelLoadError, match="no graph fp32-queries; make it with osrerank export"):
        load_scorer(str(tmp_path / "fp32"), backend="onnx")


@pytest.fixture(params=JOININGS, ids=str)
def pairs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A duo model, as `osrerank export --kind duo` makes it of a mono model."""
    mono = model(tmp_path / "mono", request.param)
    card = export_model(mono, tmp_path / "duo", ExportOptions(kind="duo", keep_weights=True))
    assert card.joining.bias == pytest.approx(request.param.bias - np.log(2))

    assert set(card.onnx) == {"fp32"} | JOINS[card.joining.layers]
    return tmp_path / "duo"


def test_a_duo_models_weights_come_back_from_its_graphs(pairs: Path) -> None:
    (pairs / "model.safetensors").unlink()
    joining = read_card(pairs).joining
    scores = load_scorer(str(pairs), backend="torch", kind="duo").score(QUERY, DOCUMENTS, [(0, 1), (2, 3)])
    shutil.copyfile(TINY / "model.safetensors", pairs / "model.safetensors")
    if joining.own_weights:
        add_own_weights(pairs, joining)
    expected = [defined_pair(pairs, QUERY, DOCUMENTS[i], DOCUMENTS[j], joining) for i, j in ((0, 1), (2, 3))]
    np.testing.assert_allclose(scores.values, expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_pairs_equal_the_definition(pairs: Path, backend: str) -> None:
    tuples = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (1, 1)]
    scorer = load_scorer(str(pairs), backend=backend, kind="duo")
    scores = scorer.score(QUERY, DOCUMENTS, tuples)
    joining = scorer.card.joining
    expected = [defined_pair(pairs, QUERY, DOCUMENTS[i], DOCUMENTS[j], joining) for i, j in tuples]
    assert np.ptp(expected) > 0.02
    np.testing.assert_allclose(scores.values, expected, atol=5e-6, rtol=0)
    assert scores.values[0] == -scores.values[1]
    assert scores.inferences == 4  # of (1, 0) and (3, 2) the other order is computed
