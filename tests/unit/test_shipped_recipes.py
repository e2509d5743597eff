"""The cards of the shipped models against the recipes in ``tools/models``."""

import tomllib

import pytest

from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import tokenizer_file
from tests.servers import ROOT

NOT_SHIPPED = {"duobert-l6"}  # misses its gate
RECIPES = sorted(file for file in (ROOT / "tools" / "models").glob("*/recipes/*.toml") if file.stem not in NOT_SHIPPED)


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_the_card_of_each_shipped_model_has_the_numbers_of_its_recipe(file):
    recipe, card = tomllib.loads(file.read_text("utf-8")), read_card(locate(f"osrerank/{file.stem}"))
    assert card.name == f"osrerank/{file.stem}"
    assert card.provenance == recipe["provenance"]
    for name in ("pooling", "query_prefix", "document_prefix"):
        assert getattr(card, name) == recipe.get("export", {}).get(name, getattr(card, name))
    weight = recipe.get("first_pass_weight", 0) * card.calibration.scale
    assert card.first_pass_weight == pytest.approx(weight, abs=1e-4)


def test_every_shipped_model_has_a_recipe_and_the_common_tokenizer():
    shipped = {folder.name for folder in (ROOT / "osrerank" / "models").iterdir() if folder.is_dir()}
    assert shipped == {file.stem for file in RECIPES}
    shared = tokenizer_file(locate("osrerank/e5-small"))
    assert shared.exists()
    assert all(tokenizer_file(locate(f"osrerank/{name}")).samefile(shared) for name in shipped)
