"""Recipes of trainings: the papers' numbers, and refused values."""

import pytest

from osrerank.errors import ConfigError
from osrerank.training.recipes import PRESETS, Recipe


def test_recipes_have_the_papers_numbers() -> None:
    mono = PRESETS["monobert"]
    assert (mono.batch, mono.steps, mono.rate, mono.warmup) == (128, 100_000, 3e-6, 10_000)
    assert (mono.beta1, mono.beta2, mono.weight_decay, mono.clip) == (0.9, 0.999, 0.01, 1.0)
    assert (mono.loss, mono.draw, mono.bias_correction, mono.decay_from) == ("pointwise", "balanced", False, "start")
    icip = PRESETS["icip"]
    assert (icip.rate, icip.batch, icip.max_tokens, icip.measure) == (1e-6, 32, 256, "RR@10")
    birch = PRESETS["birch"]
    assert (birch.rate, birch.batch, birch.epochs, birch.head) == (1e-5, 16, 5.0, "next-sentence")
    tiny = PRESETS["simplified-tinybert"]
    assert (tiny.rate, tiny.batch, tiny.epochs, tiny.max_tokens) == (5e-5, 64, 2.0, 256)
    assert all(recipe.name == name for name, recipe in PRESETS.items())


def test_changing_a_recipe_keeps_its_other_values() -> None:
    recipe = Recipe.from_options({"name": "monobert", "steps": 7, "rate": 1}, "modern")
    assert (recipe.steps, recipe.rate, recipe.batch) == (7, 1, 128)
    assert Recipe.from_options(None, "duobert").name == "duobert"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "monobart"}, "monobart"),
        ({"bach": 3}, "no option 'bach'"),
        ({"batch": 2.5}, "a whole number"),
        ({"batch": 0}, "1 or more"),
        ({"loss": "pairwise"}, "pointwise, listwise"),
        ({"hard": "yes"}, "true or false"),
        ({"steps": 0, "epochs": 0.0}, "above 0"),
        ({"dropout": 1.0}, "below 1"),
    ],
)
def test_unusable_values_of_a_recipe_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe.from_options(given, "modern")


@pytest.mark.parametrize(("warmup", "expected"), [(0.1, 10), (25, 25), (0, 0)])
def test_warm_up_is_given_in_steps_or_as_a_share(warmup: float, expected: int) -> None:
    assert Recipe(warmup=warmup).warmup_steps(100) == expected
