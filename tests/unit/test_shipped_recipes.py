"""The cards of the shipped models against the recipes in ``tools/models/recipes``."""

import json
import runpy

import pytest

from tests.servers import ROOT

pytest.importorskip("torch")

MODELS = runpy.run_path(str(ROOT / "tools" / "models" / "shipped_recipes.py"))


@pytest.mark.parametrize("name", MODELS["MODELS"])
def test_the_card_is_its_recipes(name: str) -> None:
    card = json.loads((ROOT / "osrerank" / "models" / name / "osrerank.json").read_text("utf-8"))
    expected = MODELS["read_model"](name).shipped_card()
    trained, wanted = card["provenance"].pop("our_training"), expected["provenance"].pop("our_training")
    assert trained == {field: wanted[field] for field in trained}  # a recipe has fields that are younger than a card
    assert card == expected


def test_a_table_of_a_model_wins_over_the_common_one() -> None:
    small, mono = (MODELS["read_model"](name) for name in ("mono-small", "mono"))
    assert small.card["biases"] == {**mono.card["biases"], "pool_factor": 2.5}
    assert (small.card["first_pass_weight"], small.export["outlier_gain"]) == (8.0, 3.0)
    assert "outlier_gain" not in mono.export
