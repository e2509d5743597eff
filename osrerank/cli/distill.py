"""``osrerank distill``: a smaller model learns from a larger one."""

from pathlib import Path
from typing import Any

import click

from osrerank.cli.train import MODEL, request_of, told, training_options


@click.command()
@training_options
@click.option("--layers", type=click.IntRange(1), help="Layers of the student, which starts from the teacher's own.")
@click.option("--inner", default=0, type=click.IntRange(0), help="With --layers: feed-forward units of a layer.")
@click.option("--student", type=MODEL, help="Checkpoint that the student starts from instead.")
def distill(layers: int | None, inner: int, student: Path | None, **options: Any) -> None:
    """Distil a mono model, the teacher given by --init-from, into a smaller one.

    \b
    osrerank distill --init-from mono --layers 3 --recipe tinybert-listwise --data examples=squad.jsonl --output small
    osrerank distill --init-from mono --student small --recipe logits --data examples=squad.jsonl --output small-mono

    Recipes: simplified-tinybert (the default; hard=false is its one-step variant), tinybert-listwise, logits.
    """
    from osrerank.training.fit import distill as fit  # noqa: PLC0415 - imports torch

    if (layers is None) == (student is None):
        raise click.UsageError("give one of --layers and --student")
    told(fit(request_of(options, "simplified-tinybert"), layers=layers or 0, inner=inner, student=student))
