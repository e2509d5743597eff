"""Bi-encoders of every family that two versions of sentence-transformers saved: our vectors against the library's own.

The library need not be installed: its files and vectors are in ``tests/data/encoders``.
"""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from tools.models.encoder_parity import SAVED, furthest, least_cosine, vectors
from tools.models.encoders import FORMS, read, restored

FP32_BOUND, INT8_BOUND = 1e-5, 0.99
"""Of a number of a vector, and of the cosine between its int8 form and the library's."""
VERSIONS = ("5.7", "6.2")


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FORMS)
def test_each_backend_gives_the_librarys_vectors(name: str, version: str, tmp_path: Path) -> None:
    form = read(SAVED / f"sentence-transformers-{version}.json")[name]
    theirs, checkpoint = form["vectors"], restored(form, tmp_path / "saved")
    apart = np.linalg.norm(theirs["document"][:, None] - theirs["document"], axis=2)
    assert np.sort(apart, axis=1)[:, 1].min() > 0.1, "the texts' vectors are too near to show anything"
    for way in ("torch", "onnx"):
        assert furthest(vectors(checkpoint, way), theirs) < FP32_BOUND, way
    rounded = vectors(checkpoint, "int8")
    assert furthest(rounded, theirs) > FP32_BOUND
    assert least_cosine(rounded, theirs) > INT8_BOUND
