"""The ONNX graphs against the plain transformers forward, and the cross-bias layout against its definition."""

from pathlib import Path

import numpy as np
import pytest

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card import CrossBias
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.registry import load_scorer
from tests.cross_bias import defined

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
FORMS = ("one-label", "two-labels", "cross-bias")
QUERY = "what causes low blood pressure"
DOCUMENTS = [
    "blood pressure is low when the heart is slow",
    "",
    "wing flow " * 40,
    "the search engine",
    "water & heat: 1,000!",
] * 3
TUPLES = [(index,) for index in range(len(DOCUMENTS))]
CROSS_BIAS = CrossBias(-2.0, "closed", temperature=20.0)


@pytest.fixture(params=FORMS)
def directory(request: pytest.FixtureRequest) -> Path:
    return DATA / f"tiny-bert-{request.param}"


def values(directory: Path, backend: str) -> np.ndarray:
    scorer = load_scorer(str(directory), backend=backend, threads=1)
    return scorer.score(QUERY, DOCUMENTS, TUPLES).values


def test_onnx_equals_torch(directory: Path) -> None:
    np.testing.assert_allclose(values(directory, "onnx"), values(directory, "torch"), atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_score_does_not_depend_on_the_batch(directory: Path, backend: str) -> None:
    scorer = load_scorer(str(directory), backend=backend, threads=1)
    alone = [scorer.score(QUERY, [document], [(0,)]).values[0] for document in DOCUMENTS]
    np.testing.assert_allclose(values(directory, backend), alone, atol=1e-5, rtol=0)


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


def test_cross_bias_equals_its_definition() -> None:
    directory = DATA / "tiny-bert-cross-bias"
    expected = [defined(directory, QUERY, [document], CROSS_BIAS) for document in DOCUMENTS[:5]]
    np.testing.assert_allclose(values(directory, "onnx")[:5], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("biases", [{}, {"query_bias": 0.5, "document_bias": -1.0, "other_bias": "closed"}])
def test_pairs_in_cross_bias_equal_their_definition(tmp_path: Path, biases: dict[str, float | str]) -> None:
    source = DATA / "tiny-bert-cross-bias"
    options = ExportOptions(kind="duo", layout="cross-bias", keep_weights=True, **biases)
    card = export_model(source, tmp_path / "duo", options)
    pairs = [(0, 1), (1, 0), (2, 3), (4, 2)]
    expected = [defined(source, QUERY, [DOCUMENTS[i], DOCUMENTS[j]], card.cross_bias) for i, j in pairs]
    assert np.ptp(expected) > 0.1
    for backend in ("onnx", "torch"):
        scorer = load_scorer(str(tmp_path / "duo"), backend=backend, threads=1, kind="duo")
        np.testing.assert_allclose(scorer.score(QUERY, DOCUMENTS, pairs).values, expected, atol=1e-4, rtol=0)


def test_closed_on_both_sides_is_the_bi_encoder(tmp_path: Path) -> None:
    source = DATA / "tiny-bert-cross-bias"
    options = ExportOptions(layout="cross-bias", query_bias="closed")
    export_model(source, tmp_path / "closed", options)
    network = transformers.BertModel.from_pretrained(source, add_pooling_layer=False).eval()
    tokenizer = load_scorer(str(source), backend="onnx")._builder._tokenizer
    means = []
    for text in (QUERY, DOCUMENTS[0]):
        with torch.inference_mode():
            means.append(network(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(dim=0))
    expected = 20 * torch.nn.functional.cosine_similarity(*means, dim=0).item()
    scorer: LocalScorer = load_scorer(str(tmp_path / "closed"), backend="onnx")
    assert scorer.score(QUERY, DOCUMENTS, [(0,)]).values[0] == pytest.approx(expected, abs=1e-4)
