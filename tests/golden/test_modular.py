"""Modular cross-encoders that sentence-transformers saved: our logits against its own, in torch and in ONNX."""

from collections.abc import Callable
from contextlib import closing
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card import ModelCard
from osrerank.scoring.registry import load_scorer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.modular import QUERY, TEXTS, WIDTH, expected, libraries, saved  # noqa: E402 - imports torch

Make = Callable[..., Path]
NUMBERS = count()


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @cache
    def made(kind: str) -> Path:
        return saved(tmp_path_factory.mktemp("modular") / kind, kind)

    return made


def scores(directory: Path, backend: str, texts: tuple[str, ...] = TEXTS, query: str = QUERY) -> np.ndarray:
    with closing(load_scorer(str(directory), backend=backend)) as scorer:
        return scorer.score(query, texts, [(index,) for index in range(len(texts))]).values


def exported(directory: Path, **options: object) -> tuple[Path, ModelCard]:
    target = directory.with_name(f"{directory.name}-exported-{next(NUMBERS)}")
    return target, export_model(directory, target, ExportOptions(**options))


@pytest.mark.parametrize("kind", ["bert", "modernbert", "xlm-roberta"])
def test_every_backend_gives_the_logits_of_sentence_transformers(model_of: Make, kind: str) -> None:
    directory = model_of(kind)
    expected_scores = expected(directory)[:, 0]
    assert np.ptp(expected_scores) > 0.1
    np.testing.assert_allclose(scores(directory, "torch"), expected_scores, atol=1e-4, rtol=0)
    target, card = exported(directory, keep_weights=True)
    assert (card.head, card.max_tokens, card.segment_rows) == (
        "logit1",
        128,
        {"bert": 2, "xlm-roberta": 1}.get(kind, 0),
    )
    np.testing.assert_allclose(scores(target, "onnx"), expected_scores, atol=1e-4, rtol=0)
    np.testing.assert_allclose(scores(target, "torch"), expected_scores, atol=1e-4, rtol=0)


def test_a_head_with_every_kind_of_module_is_computed_alike(tmp_path: Path) -> None:
    """All poolings side by side, every activation, and two labels."""
    base, modules = libraries()
    poolings = ["cls", "mean", "max", "weightedmean", "lasttoken"]
    sizes = [len(poolings) * WIDTH, 24, 20, 16, 12]
    functions = [torch.nn.Tanh(), torch.nn.SiLU(), torch.nn.ReLU(), torch.nn.Sigmoid()]
    dense = [
        base.Dense(size, after, activation_function=function)
        for size, after, function in zip(sizes, sizes[1:], functions, strict=False)
    ]
    last = base.Dense(sizes[-1], 2, activation_function=None, module_output_name="scores")
    head = [modules.Pooling(WIDTH, poolings), *dense, modules.Dropout(0.5), modules.Normalize(), last]
    directory = saved(tmp_path / "made", "modernbert", head, num_hidden_layers=2)
    logits = expected(directory)
    assert logits.shape == (len(TEXTS), 2)
    np.testing.assert_allclose(scores(directory, "torch"), logits[:, 1] - logits[:, 0], atol=1e-4, rtol=0)
    target, card = exported(directory)
    assert card.head == "logits2"
    np.testing.assert_allclose(scores(target, "onnx"), logits[:, 1] - logits[:, 0], atol=1e-4, rtol=0)


def test_the_default_prompt_stands_before_the_query(tmp_path: Path) -> None:
    prompts = {"prompts": {"rank": "search document: ", "other": "low "}, "default_prompt_name": "rank"}
    directory = saved(tmp_path / "made", **prompts, num_hidden_layers=1)
    expected_scores = expected(directory)[:, 0]
    np.testing.assert_allclose(scores(directory, "torch"), expected_scores, atol=1e-4, rtol=0)
    target, card = exported(directory)
    assert card.query_prefix == "search document: "
    np.testing.assert_allclose(scores(target, "onnx"), expected_scores, atol=1e-4, rtol=0)
    assert np.abs(scores(target, "onnx", query="search document: " + QUERY) - expected_scores).max() > 1e-3


def test_a_classifier_saved_by_sentence_transformers_is_read(tmp_path: Path) -> None:
    import sentence_transformers
    import transformers

    from tests.modular import base, randomise

    libraries()
    source = base(tmp_path / "base", "modernbert", most_tokens=96, num_labels=1)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(source)
    randomise(network)
    network.save_pretrained(source)
    directory = tmp_path / "made"
    sentence_transformers.CrossEncoder(str(source), device="cpu").save_pretrained(str(directory))
    assert (directory / "modules.json").exists()
    expected_scores = expected(directory)[:, 0]
    assert np.ptp(expected_scores) > 0.1
    np.testing.assert_allclose(scores(directory, "torch"), expected_scores, atol=1e-4, rtol=0)
    target, card = exported(directory)
    assert card.max_tokens == 96
    np.testing.assert_allclose(scores(target, "onnx"), expected_scores, atol=1e-4, rtol=0)


def test_long_texts_are_cut_at_the_models_own_limit(tmp_path: Path) -> None:
    """Through blocks of windows in both graphs, at 1,000 tokens; all 8,192 are in the slow test."""
    directory = saved(tmp_path / "made", "modernbert", most_tokens=1000)
    texts = ("wing " * 2000, "low blood " * 200, "heat " * 36, "the score " * 66)
    expected_scores = expected(directory, texts)[:, 0]
    np.testing.assert_allclose(scores(directory, "torch", texts), expected_scores, atol=1e-4, rtol=0)
    target, card = exported(directory)
    assert card.max_tokens == 1000
    np.testing.assert_allclose(scores(target, "onnx", texts), expected_scores, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_text_of_8192_tokens_is_scored(tmp_path: Path, precision: str) -> None:
    directory = saved(tmp_path / "made", "modernbert", most_tokens=8192, local_attention=128)
    texts = ("wing of the boundary layer " * 2000, "low blood " * 200)
    target, card = exported(directory, precision=precision)
    assert card.max_tokens == 8192
    onnx_scores = scores(target, "onnx", texts)
    if precision == "fp32":
        expected_scores = expected(directory, texts)[:, 0]
        np.testing.assert_allclose(onnx_scores, expected_scores, atol=1e-4, rtol=0)
        np.testing.assert_allclose(scores(directory, "torch", texts), expected_scores, atol=1e-4, rtol=0)
    assert np.isfinite(onnx_scores).all()
