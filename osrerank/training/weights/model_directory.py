"""Write a trained model's directory: its weights, model card, README and loss curve."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import MissingDependencyError
from osrerank.evaluation.plots import plot_training
from osrerank.export.export_model import README, new_directory
from osrerank.scoring.card import ModelCard
from osrerank.training.curve import CURVE_FILE, read_curve
from osrerank.training.weights.models import Trainee


def write_model(output: Path, trainee: Trainee, training_folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write a trained model's directory, completely or not at all.

    Args:
        output: the directory to create.
        trainee: the trained model.
        training_folder: the folder that contains the loss curve.
        provenance: the recipe, the data and the measures, for the card and the README.

    Raises:
        ConfigError: the output exists.
    """
    with new_directory(output) as directory:
        card = replace(trainee.card, provenance=provenance)
        replace(trainee, card=card).save(directory)
        _write_readme_and_curve(directory, training_folder, trainee.card.name, _summarise(trainee.card), provenance)


def write_encoder_description(directory: Path, training_folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write a pre-trained encoder's README and loss curve. `write_model` describes the arguments."""
    summary = "An encoder to start a training from, not a reranker."
    _write_readme_and_curve(directory, training_folder, directory.name, summary, provenance)


def write_average_readme(directory: Path, card: ModelCard) -> None:
    """Write the README of an averaged model, whose card lists the models and their factors in ``average_of``."""
    models = [f"- `{entry['model']}`: {entry['share']:g}" for entry in card.provenance["average_of"]]
    lines = [f"# {card.name}", "", _summarise(card), "Its weights are the weighted mean of these models:", "", *models]
    (directory / README).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summarise(card: ModelCard) -> str:
    return f"A reranking model ({card.kind}) with a {card.head} head. Its input has at most {card.max_tokens} tokens."


def _write_readme_and_curve(
    directory: Path, training_folder: Path, name: str, summary: str, provenance: Mapping[str, Any]
) -> None:
    (directory / README).write_text(_format_readme(name, summary, provenance), encoding="utf-8")
    if (training_folder / CURVE_FILE).exists():
        shutil.copyfile(training_folder / CURVE_FILE, directory / CURVE_FILE)
        _plot_curve(directory)


def _plot_curve(directory: Path) -> None:
    """Plot the loss curve if matplotlib is installed. The CSV file has the same values."""
    try:
        require("matplotlib", extra="eval")
    except MissingDependencyError:
        return
    rows = read_curve(directory / CURVE_FILE)
    losses = [(int(row["step"]), float(row["loss"])) for row in rows]
    measures = [(int(row["step"]), float(row["measure"])) for row in rows if row.get("measure")]
    plot_training(directory / "curve.svg", losses, measures)


def _format_readme(name: str, summary: str, provenance: Mapping[str, Any]) -> str:
    recipe = provenance["our_training"]
    student = f"; the student began as `{provenance['student_from']}`" if "student_from" in provenance else ""
    lines = [
        f"# {name}",
        "",
        summary,
        f"Trained with `osrerank` by the recipe `{recipe['name']}`, from `{provenance['base_model']}`{student}.",
        "",
        "## Data",
        "",
        *_format_data(provenance["data"]),
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
        *_format_measures(provenance.get("measures", {})),
    ]
    return "\n".join(lines) + "\n"


def _format_data(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for source in sources:
        count = f": {source['examples']} examples" if "examples" in source else ""
        lines.append(f"- `{source['source']}`{count}")
    return lines


def _format_measures(measures: Mapping[str, Any]) -> list[str]:
    if not measures:
        return ["None: no development set was measured, so the last weights were kept."]
    return [f"- {name}: {value}" for name, value in measures.items()]
