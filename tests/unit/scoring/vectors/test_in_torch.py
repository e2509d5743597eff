"""Records made in torch are those of the model's graph up to rounding."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osrerank import connect
from osrerank.indexing import bi_encoder_of, build_vectors
from osrerank.scoring.vectors.store import MemoryStore
from osrerank.types import NEVER, Deadline

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch

from tests.unit.scoring.vectors.test_scorer import DOCUMENTS, MONO, QUERY, opened


@pytest.fixture(scope="module", params=["cls", "mean"])
def directory(request: pytest.FixtureRequest, bi_encoder: Callable[..., Path]) -> Path:
    return bi_encoder(pooling=request.param, precision="fp32")


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "tolerance"), [("auto", 2e-4), ("bf16", 0.1)])
def test_scores_are_the_same_up_to_rounding(directory: Path, dtype: str, tolerance: float) -> None:
    if torch.cuda.is_available() and dtype == "auto":
        dtype = "fp32"
    expected = opened(directory).score(QUERY, DOCUMENTS, MONO)
    store = MemoryStore(100_000_000)
    scorer = opened(directory, store).made_in_torch(dtype)
    assert scorer.remember(DOCUMENTS) == (len(set(DOCUMENTS)), len(set(DOCUMENTS)))
    scores = opened(directory, store).score(QUERY, DOCUMENTS, MONO)
    assert (scores.encoded, scores.known) == (0, len(DOCUMENTS))
    assert (scores.truncated, scores.reached) == (expected.truncated, expected.reached)
    np.testing.assert_allclose(scores.values / 20, expected.values / 20, atol=tolerance)  # 20: the calibration's scale


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_too(directory: Path) -> None:
    expected = opened(directory).score(QUERY, DOCUMENTS, MONO)
    store = MemoryStore(100_000_000)
    opened(directory, store).made_in_torch("auto").remember(DOCUMENTS)
    scores = opened(directory, store).score(QUERY, DOCUMENTS, MONO)
    np.testing.assert_allclose(scores.values / 20, expected.values / 20, atol=0.1)


def test_batches_are_of_one_length_and_a_deadline_ends_between_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osrerank.scoring.vectors.in_torch.BUDGET_TOKENS", {"cpu": 200, "cuda": 200})
    scorer = opened(directory).made_in_torch("fp32")
    made = scorer._maker.make(DOCUMENTS, NEVER)
    assert sorted(made.records) == list(range(len(DOCUMENTS)))
    assert scorer._maker.make(DOCUMENTS, Deadline.after_ms(-1)).records == {}


@pytest.mark.long
def test_an_index_is_built_in_torch_and_searched_with_its_graphs(
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
        assert (stage["encoded"], stage["known"]) == (0, stage["inferences"])
        assert stage["known"] > 10
        assert bi_encoder_of(client).store is not None
