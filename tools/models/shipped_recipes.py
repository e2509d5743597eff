"""The recipes of the shipped models, ``recipes/*.toml``: how each was trained, averaged and exported, and its card."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.training.recipes import Recipe

FOLDER = Path(__file__).parent / "recipes"
MODELS = ("mono", "mono-small", "duo")
"""In the order in which they are made: the later ones start from mono."""
START = "start"
"""Stands for all-MiniLM-L6-v2 where a recipe names a model."""


@dataclass(frozen=True, slots=True)
class Training:
    """One training.

    Attributes:
        output: name of the model that it makes.
        init_from: model that it starts from; the teacher of a distillation.
        data: names of the files of examples.
        recipe: preset and fields of `osrerank.training.recipes.Recipe`.
        distil: whether it is a distillation.
        as_duo: whether the teacher is made a duo model first.
        student: model that a distillation's student starts from; the teacher where empty.
        layers: of the student, see `osrerank.training.fit.distill`.
        pool_factor: of the student; None for the teacher's.
    """

    output: str
    init_from: str
    data: Sequence[str]
    recipe: Recipe
    distil: bool = False
    as_duo: bool = False
    student: str = ""
    layers: int | Sequence[int] = 0
    pool_factor: float | None = None


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """The recipe of a shipped model.

    Attributes:
        name: ``mono``.
        trainings: one after the other.
        average: share of each model in the weights; empty for the last training's own.
        card: fields of its card.
        export: ``precision``, ``activations``, ``outlier_gain``, ``calibrate``.
        provenance: texts of its card.
        outcome: what the run that was shipped gave: ``data``, ``calibration``, ``measures``.
    """

    name: str
    trainings: Sequence[Training]
    average: Mapping[str, float]
    card: Mapping[str, Any]
    export: Mapping[str, Any]
    provenance: Mapping[str, Any]
    outcome: Mapping[str, Any]

    def shipped_card(self) -> dict[str, Any]:
        """Return the ``osrerank.json`` that was shipped; every number of it is of the recipe or its outcome."""
        last = self.trainings[-1]
        provenance: dict[str, Any] = {
            **self.provenance,
            "our_training": last.recipe.as_json(),
            "steps": last.recipe.steps,
            "seed": last.recipe.seed,
            "data": [{"source": f"examples={name}.jsonl", "examples": count} for name, count in self.outcome["data"]],
        }
        if self.average:
            names = {START: self.outcome.get("start", START)}
            provenance["average_of"] = [
                {"model": names.get(name, name), "share": share} for name, share in self.average.items()
            ]
        if "measures" in self.outcome:
            provenance["measures"] = self.outcome["measures"]
        return {**self.card, "calibration": self.outcome["calibration"], "provenance": provenance}


def read_model(name: str) -> ShippedModel:
    """Return the recipe of a shipped model.

    Raises:
        ConfigError: a field of a training's recipe is unknown or cannot be used.
    """
    common, own = (tomllib.loads((FOLDER / f"{file}.toml").read_text("utf-8")) for file in ("common", name))
    trainings = [
        Training(**{**one, "recipe": Recipe.of({**common["recipe"], **one["recipe"]}, "modern")})
        for one in own["training"]
    ]
    merged = {table: _merged(common[table], own.get(table, {})) for table in ("card", "export", "provenance")}
    return ShippedModel(name, trainings, own.get("average", {}), outcome=own["outcome"], **merged)


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables in one; the second wins, and tables in both are merged likewise."""
    merged = {**common, **own}
    for key in common.keys() & own.keys():
        if isinstance(common[key], Mapping):
            merged[key] = _merged(common[key], own[key])
    return merged
