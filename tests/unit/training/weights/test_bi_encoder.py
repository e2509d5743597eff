"""Bi-encoders as the start and the result of a training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.scoring.card_file import read_card
from osrerank.scoring.modular.head import HeadStep
from osrerank.scoring.registry import load_scorer
from osrerank.training.curve import read_curve
from osrerank.training.development import NetworkScorer
from osrerank.training.examples.example import Example
from osrerank.training.fit import train
from osrerank.training.recipes import Recipe
from osrerank.training.weights.bi_encoder import COSINE_SCALE
from osrerank.training.weights.models import load_trainee
from tests.bi_encoders import carded, plain, saved
from tests.unit.training.test_fit import request

FORMS = [("cls", ""), ("mean", "ask : ")]
SMALL = Recipe(steps=40, batch=8, negatives=3, rate=1e-3, mine_at=0.5, evaluate_every=20, max_tokens=64)
QUERY = "low blood pressure"
DOCUMENTS = ("blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!")
WEIGHT = "encoder.layer.0.output.dense.weight"


def values(model: Path, backend: str = "torch") -> np.ndarray:
    scorer = load_scorer(str(model), backend=backend)
    return scorer.score(QUERY, DOCUMENTS, [(index,) for index in range(4)]).values


@pytest.mark.parametrize(("pooling", "prefix"), FORMS)
def test_training_computes_the_same_cosines_as_scoring(tmp_path: Path, pooling: str, prefix: str) -> None:
    source = carded(tmp_path / "source", pooling, prefix)  # type: ignore[arg-type]
    trainee = load_trainee(source, replace(SMALL, max_tokens=512))
    example = Example(QUERY, DOCUMENTS, (1, 0, 0, 0))
    (found,) = NetworkScorer(torch.device("cpu"), 200).score_documents(trainee, [example])
    np.testing.assert_allclose(np.array(found) / COSINE_SCALE, values(source), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("pooling", "prefix"), FORMS)
def test_a_trained_bi_encoder_scores_the_same_after_saving(examples, tmp_path, pooling, prefix):
    source = carded(tmp_path / "source", pooling, prefix)  # type: ignore[arg-type]
    trained = train(request(examples, tmp_path / "made", SMALL, source=source))
    assert trained is not None
    losses = [float(row["loss"]) for row in read_curve(trained / "curve.csv")]
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:8])
    card, before = read_card(trained), read_card(source)
    assert (card.kind, card.pooling, card.query_prefix) == (before.kind, pooling, prefix)
    assert card.max_query_tokens == SMALL.max_tokens
    old, new = load_file(source / "model.safetensors"), load_file(trained / "model.safetensors")
    assert new.keys() == old.keys()
    assert not torch.equal(old[WEIGHT], new[WEIGHT])
    assert torch.equal(new[WEIGHT], load_trainee(trained, SMALL).network.encoder.layers[0].narrow.weight)
    assert not np.allclose(values(trained), values(source), atol=0.01)
    for precision, tolerance in (("fp32", 3e-6), ("int8", 0.05)):
        export_model(trained, tmp_path / precision, ExportOptions(precision=precision))
        np.testing.assert_allclose(values(tmp_path / precision, "onnx"), values(trained), atol=tolerance)


def test_an_encoder_without_a_card_is_refused(examples: Path, tmp_path: Path) -> None:
    output = tmp_path / "made"
    with pytest.raises(ConfigError, match="bare does not say how it pools vectors: it has neither a card"):
        train(request(examples, output, replace(SMALL, kind="bi-encoder"), source=plain(tmp_path / "bare")))
    assert not output.exists()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"pooling": "lasttoken"}, "pooling is 'lasttoken'"),
        ({"head": "dot"}, "head is 'dot'"),
        ({"dimensions": 8}, "dimensions is 8"),
        ({"modules": (HeadStep("dense", "2_Dense.linear"),)}, "modules is"),
    ],
)
def test_poolings_that_training_does_not_support_are_refused(tmp_path: Path, fields: Any, problem: str) -> None:
    source = carded(tmp_path / "source")
    write_card(source, replace(read_card(source), **fields))
    with pytest.raises(ModelLoadError, match=rf"osrerank\.json: {problem}"):
        load_trainee(source, SMALL)


def test_a_cross_encoder_starts_from_a_bi_encoders_weights(tmp_path: Path) -> None:
    source = carded(tmp_path / "source")
    trainee = load_trainee(source, replace(SMALL, max_query_tokens=16), kind="duo")
    card = trainee.card
    assert (card.kind, card.head, card.segment_rows) == ("duo", "logits2", 3)
    found = dict(trainee.network.network.named_parameters())[f"bert.{WEIGHT}"]
    assert torch.equal(found, load_file(source / "model.safetensors")[WEIGHT])


def test_a_bi_encoder_of_sentence_transformers_is_trained(tmp_path: Path) -> None:
    source = saved(tmp_path / "saved", "mean", query="query: ")
    card = load_trainee(source, Recipe(loss="listwise", max_tokens=64)).card
    assert (card.kind, card.head, card.pooling, card.query_prefix) == ("bi-encoder", "cosine", "mean", "query: ")
    card = load_trainee(source, Recipe(kind="cross-encoder", max_tokens=80)).card
    assert (card.kind, card.head, card.query_prefix) == ("cross-encoder", "logits2", "")
