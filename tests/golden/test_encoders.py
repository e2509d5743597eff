"""Bi-encoders of every family that two versions of sentence-transformers saved: our vectors against the library's own.

The library need not be installed: its files and vectors are in ``tests/data/encoders``.
"""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import load_model
from osrerank.types import is_encoder
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import ROUNDED_BITS
from osrerank.vectors.storage import VectorStorage
from tests.memory_store import MemoryStore
from tools.models.encoder_parity import SAVED, compute_vectors, max_difference, min_cosine
from tools.models.encoders import FORMS, TEXTS, read_forms, restore_checkpoint

FP32_BOUND, INT8_BOUND = 1e-5, 0.99
"""Of a number of a vector, and of the cosine between its int8 form and the library's."""
VERSIONS = ("5.7", "6.2")


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FORMS)
def test_each_backend_gives_the_vectors_of_sentence_transformers(name: str, version: str, tmp_path: Path) -> None:
    form = read_forms(SAVED / f"sentence-transformers-{version}.json")[name]
    theirs, checkpoint = form["vectors"], restore_checkpoint(form, tmp_path / "saved")
    apart = np.linalg.norm(theirs["document"][:, None] - theirs["document"], axis=2)
    assert np.sort(apart, axis=1)[:, 1].min() > 0.1, "the texts' vectors are too near to show anything"
    for way in ("torch", "onnx"):
        assert max_difference(compute_vectors(checkpoint, way), theirs) < FP32_BOUND, way
    rounded = compute_vectors(checkpoint, "int8")
    assert max_difference(rounded, theirs) > FP32_BOUND
    assert min_cosine(rounded, theirs) > INT8_BOUND


@pytest.mark.long
@pytest.mark.parametrize("name", ["MPNet, CLS, dot product", "ModernBERT, mean"])
def test_stored_vectors_have_the_similarities_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    """Cold and warm, in 8 bits: also of vectors whose norms count."""
    form = read_forms(SAVED / "sentence-transformers-6.2.json")[name]
    card = export_model(
        restore_checkpoint(form, tmp_path / "saved"), tmp_path / "made", ExportOptions(precision="fp32")
    )
    model = load_model(str(tmp_path / "made"), threads=1)
    assert is_encoder(model)
    scorer = EncoderScorer(DocumentVectors(model, VectorStorage(MemoryStore(), ROUNDED_BITS)))
    theirs = form["vectors"]["document"] @ form["vectors"]["query"][0]
    for n_known in (0, len(TEXTS)):
        scores = scorer.score(TEXTS[0], TEXTS, [(index,) for index in range(len(TEXTS))])
        assert scores.known == n_known
        products = (scores.values - card.calibration.offset) / card.calibration.scale
        np.testing.assert_allclose(products, theirs, atol=0.01 * np.abs(theirs).max())
        scorer.vectors.build(TEXTS)
