"""The result of a training: the model directory, its cards for programs and for people, and its curve."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import MissingDependencyError
from osrerank.evaluation.plots import plot_curve
from osrerank.export.export_model import new_directory
from osrerank.scoring.card import ModelCard
from osrerank.training.curve import CURVE_FILE, read_curve
from osrerank.training.weights.models import Trainee

README_FILE = "README.md"


def write_model(output: Path, trainee: Trainee, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write a trained model's directory; it appears whole or not at all.

    Args:
        output: the directory to make.
        trainee: the model.
        folder: of the training, for its curve.
        provenance: base model, data, recipe, seed, measures.

    Raises:
        ConfigError: the output exists.
    """
    with new_directory(output) as made:
        replace(trainee, card=replace(trainee.card, provenance=provenance)).save(made)
        _describe(made, folder, trainee.card.name, _what(trainee.card), provenance)


def finish_encoder(made: Path, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Add the curve and the card for people to a pre-trained encoder's directory."""
    _describe(made, folder, made.name, "An encoder to start a training from, not a reranker.", provenance)


def write_average_readme(made: Path, card: ModelCard) -> None:
    """Add the card for people to a model whose weights are the mean of others', its provenance's ``average_of``."""
    averaged = [f"- {part['share']:g} of `{part['model']}`" for part in card.provenance["average_of"]]
    lines = [f"# {card.name}", "", _what(card), "Its weights are the mean of those of", "", *averaged]
    (made / README_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _what(card: ModelCard) -> str:
    return f"A reranking model of the kind {card.kind}: {card.head} head, {card.max_tokens} tokens."


def _describe(made: Path, folder: Path, name: str, what: str, provenance: Mapping[str, Any]) -> None:
    (made / README_FILE).write_text(_readme(name, what, provenance), encoding="utf-8")
    if (folder / CURVE_FILE).exists():
        shutil.copyfile(folder / CURVE_FILE, made / CURVE_FILE)
        _plot(made)


def _plot(made: Path) -> None:
    """Plot the curve if matplotlib is installed; the CSV has the same values."""
    try:
        require("matplotlib", extra="eval")
    except MissingDependencyError:
        return
    rows = read_curve(made / CURVE_FILE)
    losses = [(int(row["step"]), float(row["loss"])) for row in rows]
    measures = [(int(row["step"]), float(row["measure"])) for row in rows if row.get("measure")]
    plot_curve(made / "curve.svg", losses, measures)


def _readme(name: str, what: str, provenance: Mapping[str, Any]) -> str:
    recipe = provenance["our_training"]
    began = f"; the student began as `{provenance['student_from']}`" if "student_from" in provenance else ""
    lines = [
        f"# {name}",
        "",
        what,
        f"Trained with `osrerank` by the recipe `{recipe['name']}`, from `{provenance['base_model']}`{began}.",
        "",
        "## Data",
        "",
        *(f"- `{one['source']}`{_amount(one)}" for one in provenance["data"]),
        "",
        "## Recipe",
        "",
        f"{provenance['steps']} steps, seed {provenance['seed']}; the loss is in `{CURVE_FILE}`.",
        "",
        "```json",
        json.dumps(recipe, indent=2),
        "```",
        "",
        "## Measures",
        "",
        *_measured(provenance.get("measures", {})),
    ]
    return "\n".join(lines) + "\n"


def _amount(source: Mapping[str, Any]) -> str:
    return f": {source['examples']} examples" if "examples" in source else ""


def _measured(measures: Mapping[str, Any]) -> list[str]:
    if not measures:
        return ["None: the last weights were kept; no development set was measured."]
    return [f"- {name}: {value}" for name, value in measures.items()]
