"""Averages of several models' weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from osrerank.errors import ConfigError
from osrerank.scoring.card_file import read_card
from osrerank.scoring.registry import load_scorer
from osrerank.training.recipes import Recipe
from osrerank.training.weights.averaging import average
from osrerank.training.weights.models import load_trainee
from tests.bi_encoders import plain
from tests.servers import ROOT

DATA = ROOT / "tests" / "data"
START = DATA / "tiny-bert-two-labels"


def moved(folder: Path, by: float) -> Path:
    """Write the model with all weights moved."""
    trainee = load_trainee(START, Recipe(max_tokens=64, max_query_tokens=16))
    with torch.no_grad():
        for parameter in trainee.network.parameters():
            parameter.add_(by)
    folder.mkdir()
    replace(trainee, card=replace(trainee.card, provenance={"base_model": "tiny"})).save(folder)
    return folder


def test_averaged_weights_are_weighted_means(tmp_path: Path) -> None:
    trained, start = moved(tmp_path / "trained", 0.5), plain(tmp_path / "start", START)
    made = average([trained, start], [3, 1], tmp_path / "mean")
    before, after = load_file(START / "model.safetensors"), load_file(made / "model.safetensors")
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name] + 0.375)
    card = read_card(made)
    assert (card.name, card.max_tokens, card.kind) == ("mean", 64, "cross-encoder")
    assert card.provenance["average_of"] == [{"model": "trained", "share": 0.75}, {"model": "start", "share": 0.25}]
    assert card.provenance["base_model"] == "tiny"
    readme = (made / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(
        "# mean\n\nA reranking model (cross-encoder) with a logits2 head. Its input has at most 64 tokens.\n"
    )
    assert readme.endswith("the weighted mean of these models:\n\n- `trained`: 0.75\n- `start`: 0.25\n")
    assert load_scorer(str(made), backend="torch").score("low", ["salt"], [(0,)]).inferences == 1


@pytest.mark.parametrize("shares", [[1.0], [1.0, -0.5], [0.0, 0.0]])
def test_impossible_shares_of_averaged_models_are_refused(tmp_path: Path, shares: list[float]) -> None:
    with pytest.raises(ConfigError, match="2 models have the shares"):
        average([START, START], shares, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_averaging_models_of_different_form_is_refused(tmp_path: Path) -> None:
    other = plain(tmp_path / "other", START)
    weights = load_file(other / "model.safetensors")
    config = json.loads((other / "config.json").read_text())
    table = "bert.embeddings.word_embeddings.weight"
    weights[table] = torch.cat([weights[table], weights[table][:1]])
    save_file(weights, other / "model.safetensors")
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 1}))
    with pytest.raises(ConfigError, match=r"word_embeddings.weight of .* is missing in .*other or has another shape"):
        average([START, other], [1, 1], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_averaging_models_with_different_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one-label has the head logit1, but .*two-labels has logits2"):
        average([START, DATA / "tiny-bert-one-label"], [1, 1], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()
