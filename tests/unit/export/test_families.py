"""Int8 exports of several families of models keep the order of fp32."""

from pathlib import Path

import numpy as np
import pytest

from osrerank.cli import main
from osrerank.scoring.card_file import read_card
from osrerank.scoring.registry import load_scorer

families = pytest.importorskip("tools.models.families", reason="needs torch and transformers")

TINY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label" / "tokenizer.json"
WORDS = ["low", "blood", "pressure", "wing", "flow", "heat", "layer", "search", "engine", "rank", "model", "water"]
QUERY = "low blood pressure"
TEXTS = [" ".join(np.random.default_rng(seed).choice(WORDS, 6 + seed)) for seed in range(24)]
PAIRS = [(QUERY, text) for text in TEXTS]
MIN_SHARED = 8
"""Of the first ten."""
MAX_ERROR = 0.3
"""Root mean square of int8's differences, in standard deviations of the logits."""
BY_HAND = ("RoBERTa", "DeBERTa-v2", "DeBERTa-v3")
"""Families that compute nearly what another does, and one that takes long."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in BY_HAND)) for name in families.FAMILIES])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family = families.FAMILIES[request.param]
    return families.make(tmp_path / "checkpoint", family, families.SHAPES["tiny"], PAIRS, tokenizer=TINY)


@pytest.mark.long
def test_int8_keeps_the_order_of_each_family(checkpoint: Path) -> None:
    network = families.load(checkpoint)
    expected = np.array([families.logit(network, tokens) for tokens in families.sequences(checkpoint, PAIRS)])
    assert expected.std() > 1, "the logits are too flat to show anything"
    found = {}
    for precision in ("fp32", "int8"):
        path = checkpoint.parent / precision
        main(["export", str(checkpoint), str(path), "--precision", precision, "--no-self-check"])
        assert list(read_card(path).onnx) == [precision]
        scorer = load_scorer(str(path), backend="onnx", threads=1)
        found[precision] = scorer.score(QUERY, TEXTS, [(index,) for index in range(len(TEXTS))]).values
        scorer.close()
    np.testing.assert_allclose(found["fp32"], expected, atol=1e-3)
    shared = set(np.argsort(-expected)[:10]) & set(np.argsort(-found["int8"])[:10])
    assert len(shared) >= MIN_SHARED
    assert np.sqrt(np.mean((found["int8"] - expected) ** 2)) < MAX_ERROR * expected.std()
