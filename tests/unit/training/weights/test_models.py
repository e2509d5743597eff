"""Models that a training starts from: heads, missing weights, and dropout."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import export_model
from osrerank.scoring.registry import load_scorer
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import TOKEN_TYPE_TABLE, load_trainee
from tests.bi_encoders import plain
from tests.servers import ROOT

DATA = ROOT / "tests" / "data"
FORMS = ("one-label", "two-labels")
DOCUMENTS = ("low salt", "the wing of the engine", "", "heat " * 40)
RECIPE = Recipe(dropout=0.0)


def scores(directory: Path, backend: str) -> np.ndarray:
    scorer = load_scorer(str(directory), backend=backend, threads=1)
    values = scorer.score("low pressure", DOCUMENTS, [(index,) for index in range(4)]).values
    scorer.close()
    return values


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_an_untrained_model_scores_the_same_after_saving(form: str, tmp_path: Path) -> None:
    start = DATA / f"tiny-bert-{form}"
    path = tmp_path / "made"
    path.mkdir()
    load_trainee(start, RECIPE).save(path)
    np.testing.assert_allclose(scores(path, "torch"), scores(start, "torch"), atol=1e-6)
    export_model(path, tmp_path / "exported")
    np.testing.assert_allclose(scores(tmp_path / "exported", "onnx"), scores(start, "torch"), atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("row", "expected"), [("zeros", 0.0), ("frozen", 0.0), ("copy", None)])
def test_a_duo_models_third_segment_starts_as_the_recipe_says(row: str, expected: float | None) -> None:
    trainee = load_trainee(DATA / "tiny-bert-two-labels", replace(RECIPE, third_row=row), kind="duo")
    table = dict(trainee.network.network.base_model.named_parameters())[TOKEN_TYPE_TABLE]
    before = load_file(DATA / "tiny-bert-two-labels" / "model.safetensors")[f"bert.{TOKEN_TYPE_TABLE}"]
    assert trainee.card.segment_rows == 3
    assert torch.equal(table[:2], before)
    assert torch.equal(table[2], before[1] if expected is None else torch.zeros(32))
    ids = torch.ones(1, 6, dtype=torch.long)
    trainee.network(ids, ids, torch.tensor([[0, 0, 1, 1, 2, 2]]))[:, 1].sum().backward()
    assert bool(table.grad[2].any()) == (row != "frozen")
    assert table.grad[:2].any()


def test_missing_weights_of_a_start_are_named(tmp_path: Path) -> None:
    start = plain(tmp_path / "start", DATA / "tiny-bert-two-labels")
    weights = load_file(start / "model.safetensors")
    lacking = {name: tensor for name, tensor in weights.items() if "layer.1.output.dense.weight" not in name}
    save_file(lacking, start / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layer\.1\.output\.dense\.weight"):
        load_trainee(start, RECIPE)


def test_a_new_head_is_drawn_within_two_sigma_and_a_dropped_head_is_named(caplog):
    found = load_trainee(DATA / "tiny-bert-one-label", replace(RECIPE, head="logits2")).network.network.classifier
    assert found.weight.shape == (2, 32)
    assert 0.005 < float(found.weight.detach().std()) < 0.03
    assert float(found.weight.detach().abs().max()) <= 0.04
    assert not found.bias.any()
    load_trainee(DATA / "tiny-bert-one-label", replace(RECIPE, head="logits2"))
    assert "is dropped: the recipe sets head=logits2" in caplog.text


@pytest.mark.parametrize(("first", "then"), [("logits2", "next-sentence"), ("next-sentence", "logits2")])
def test_a_trained_head_of_two_labels_is_kept_under_either_name(tmp_path: Path, first: str, then: str) -> None:
    load_trainee(DATA / "tiny-bert-two-labels", replace(RECIPE, head=first)).save(tmp_path)
    heads = {"logits2": "classifier", "next-sentence": "cls.seq_relationship"}
    trained = load_file(tmp_path / "model.safetensors")[f"{heads[first]}.weight"]
    found = load_trainee(tmp_path, Recipe.from_options({"head": then}, "birch"))
    assert found.card.head == then
    assert torch.equal(found.network.network.get_submodule(heads[then]).weight, trained)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head": "three"}, "head is 'three'"),
        ({"freeze": "all"}, "freeze is 'all'"),
        ({"max_tokens": 10}, "max_tokens"),
    ],
)
def test_models_that_cannot_be_built_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_trainee(DATA / "tiny-bert-two-labels", replace(RECIPE, **changes))


def test_dropout_is_read_from_the_recipe() -> None:
    network = load_trainee(DATA / "tiny-bert-two-labels", replace(RECIPE, dropout=0.25)).network
    rates = {module.p for module in network.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.25}
