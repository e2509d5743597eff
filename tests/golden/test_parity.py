"""The ONNX graphs against the plain transformers forward, and the cross-bias layout against its definition."""

from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.factory import load_scorer
from osrerank.scoring.local import LocalScorer

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


def cross_bias_reference(directory: Path, document: str) -> float:
    """Score one pair from the layout's definition, with numpy in float64, head by head and row by row."""
    weights = {
        name: tensor.double().numpy()
        for name, tensor in transformers.BertModel.from_pretrained(directory).state_dict().items()
    }
    tokenizer = load_scorer(str(directory), backend="onnx")._builder._tokenizer
    pieces = [tokenizer.encode(text, add_special_tokens=False).ids for text in (QUERY, document)]
    segments = [[2, *ids, 3] for ids in pieces]  # [CLS] text [SEP]
    n_query, n = len(segments[0]), len(segments[0]) + len(segments[1])
    table = "embeddings.{}_embeddings.weight"
    positions = [*range(n_query), *range(n - n_query)]
    states = weights[table.format("word")][segments[0] + segments[1]] + weights[table.format("position")][positions]
    states = norm(states + weights[table.format("token_type")][0], weights, "embeddings.LayerNorm")
    bias = np.zeros((n, n))
    bias[:n_query, n_query:] = -2.0
    bias[n_query:, :n_query] = -np.inf
    for layer in range(2):
        states = reference_layer(states, bias, weights, f"encoder.layer.{layer}")
    query, text = states[:n_query].mean(axis=0), states[n_query:].mean(axis=0)
    return float(20 * query @ text / np.linalg.norm(query) / np.linalg.norm(text))


def reference_layer(states: np.ndarray, bias: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    query, key, value = (dense(states, weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
    width = 8
    context = np.zeros_like(states)
    for start in range(0, states.shape[1], width):
        head = slice(start, start + width)
        weight = np.exp(query[:, head] @ key[:, head].T / width**0.5 + bias)
        context[:, head] = weight / weight.sum(axis=1, keepdims=True) @ value[:, head]
    states = norm(
        states + dense(context, weights, f"{name}.attention.output.dense"),
        weights,
        f"{name}.attention.output.LayerNorm",
    )
    inner = torch.nn.functional.gelu(torch.from_numpy(dense(states, weights, f"{name}.intermediate.dense"))).numpy()
    return norm(states + dense(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def dense(states: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(states: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = states - states.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def test_cross_bias_equals_its_definition() -> None:
    directory = DATA / "tiny-bert-cross-bias"
    expected = [cross_bias_reference(directory, document) for document in DOCUMENTS[:5]]
    np.testing.assert_allclose(values(directory, "onnx")[:5], expected, atol=1e-4, rtol=0)


def test_closed_on_both_sides_is_the_bi_encoder(tmp_path: Path) -> None:
    from osrerank.training.export import ExportOptions, export_model

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
