"""Vectors of queries and documents, with and without a store of document states."""

from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import VectorsError
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import read_card
from osrerank.scoring.onnx_scorer import JoinedBackend
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.record import PROFILES
from osrerank.scoring.states.scorer import JoinedScorer
from osrerank.scoring.states.store import MemoryStore
from osrerank.scoring.vectors.texts import TextVectors
from osrerank.testing import FunctionScorer
from osrerank.types import LongText
from tests.bi_encoders import plain

pytest.importorskip("torch")
pytest.importorskip("onnx")

from osrerank.adapt.adapt import AdaptOptions, adapt

TEXTS = ["low blood pressure", "the heart is slow", "water flow", "low blood pressure"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    options = AdaptOptions(pooling="mean", layers=0, query_prefix="ask : ", document_prefix="say : ", precision="fp32")
    adapt(plain(folder / "plain"), folder / "made", options)
    return folder / "made"


def opened(directory: Path, store: MemoryStore | None = None, profile: str = "exact") -> JoinedScorer:
    card = read_card(directory)
    backend, builder = JoinedBackend.load(directory, card, threads=1), InputBuilder.load(directory, card)
    return JoinedScorer(directory, card, builder, backend, States(store, PROFILES[profile]))


@pytest.mark.parametrize(("profile", "tolerance"), [("exact", 1e-6), ("standard", 0.01)])
def test_the_product_of_vectors_is_the_models_cosine(model: Path, profile: str, tolerance: float) -> None:
    scorer = opened(model, profile=profile)
    vectors = TextVectors(scorer)
    query, documents = vectors.query("low heart"), vectors.documents(TEXTS)
    assert (query.shape, documents.shape) == ((vectors.dimension,), (4, vectors.dimension))
    np.testing.assert_allclose(np.linalg.norm([query, *documents], axis=1), 1, atol=1e-6)
    logits = scorer.score("low heart", TEXTS, [(at,) for at in range(4)]).values
    calibration = scorer.card.calibration
    np.testing.assert_allclose(documents @ query, (logits - calibration.offset) / calibration.scale, atol=tolerance)
    scorer.close()


def test_a_text_is_encoded_once_for_its_state_and_its_vector(model: Path) -> None:
    store = MemoryStore(10_000_000)
    scorer = opened(model, store)
    first = TextVectors(scorer).documents(TEXTS)
    assert store.size().records == 3
    assert scorer.score("low heart", TEXTS, [(0,), (1,), (2,)]).known == 3
    np.testing.assert_array_equal(TextVectors(scorer).documents(TEXTS), first)
    assert TextVectors(scorer).documents([]).shape == (0, scorer.records.hidden)
    scorer.close()


@pytest.mark.parametrize("has_store", [True, False])
def test_a_long_document_has_the_vector_of_its_first_passage(model: Path, has_store: bool) -> None:
    long = LongText(b"digest", lambda: [("low blood pressure", None), ("water flow", None)])
    scorer = opened(model, MemoryStore(10_000_000) if has_store else None)
    one, other = TextVectors(scorer).documents([long, "low blood pressure"])
    np.testing.assert_array_equal(one, other)
    scorer.close()


def test_vectors_are_told_apart_by_what_encodes_documents_and_not_by_the_profile_of_states(
    model: Path, tmp_path: Path
) -> None:
    options = AdaptOptions(pooling="mean", layers=0, document_prefix="tell : ", precision="fp32")
    adapt(plain(tmp_path / "plain"), tmp_path / "other", options)
    scorers = [opened(model), opened(model, profile="standard"), opened(tmp_path / "other")]
    same, also, other = (TextVectors(scorer).model for scorer in scorers)
    assert same == also != other
    for scorer in scorers:
        scorer.close()


def test_a_scorer_of_pairs_makes_no_vectors() -> None:
    with pytest.raises(VectorsError, match="makes no vectors") as raised:
        TextVectors(FunctionScorer())
    assert raised.value.kind == "scorer"
