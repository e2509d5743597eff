"""The ONNX graphs against torch, and against the plain transformers forward."""

from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.registry import load_scorer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
FORMS = ("one-label", "two-labels", "bi-encoder")
QUERY = "what causes low blood pressure"
DOCUMENTS = [
    "blood pressure is low when the heart is slow",
    "",
    "wing flow " * 40,
    "the search engine",
    "water & heat: 1,000!",
] * 3
TUPLES = [(index,) for index in range(len(DOCUMENTS))]


@pytest.fixture(params=FORMS)
def directory(request: pytest.FixtureRequest) -> Path:
    return DATA / f"tiny-bert-{request.param}"


def values(directory: Path, backend: str) -> np.ndarray:
    scorer = load_scorer(str(directory), backend=backend, threads=1)
    return scorer.score(QUERY, DOCUMENTS, TUPLES).values


def test_onnx_equals_torch(directory: Path) -> None:
    np.testing.assert_allclose(values(directory, "onnx"), values(directory, "torch"), atol=1e-4, rtol=0)


@pytest.mark.parametrize("form", ["one-label", "two-labels"])
def test_standard_layout_equals_transformers_own_pairs(form: str) -> None:
    directory = DATA / f"tiny-bert-{form}"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), pad_token="[PAD]"
    )
    network = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    inputs = tokenizer(
        [QUERY] * len(DOCUMENTS), DOCUMENTS, padding=True, return_tensors="pt", return_token_type_ids=True
    )
    with torch.inference_mode():
        logits = network(**inputs).logits.numpy()
    expected = logits[:, 0] if form == "one-label" else logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(values(directory, "onnx"), expected, atol=1e-4, rtol=0)
