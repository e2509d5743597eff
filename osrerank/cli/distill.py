"""``osrerank distill``: train a smaller model to score as a larger one does."""

from pathlib import Path
from typing import Any

import click

from osrerank.cli.options import MODEL
from osrerank.cli.train import create_training_request, print_output, training_options


def _parse_layers(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | tuple[int, ...] | None:
    """Parse ``--layers``: the number of layers, or a list of layers."""
    if value is None:
        return None
    try:
        layers = tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a number of layers nor a list such as 1,2,5,6") from error
    if layers[0] < 1 or list(layers) != sorted(set(layers)):
        raise click.BadParameter(f"{value!r} does not list layers in ascending order, beginning with 1 or above")
    return layers if len(layers) > 1 else layers[0]


@click.command()
@training_options
@click.option(
    "--layers",
    callback=_parse_layers,
    help="Layers of the teacher that the student starts with: their number, or a list such as 1,2,5,6.",
)
@click.option("--student", type=MODEL, help="Model that the student starts from, instead of layers of the teacher.")
def distill(layers: int | tuple[int, ...] | None, student: Path | None, **options: Any) -> None:
    """Distil the teacher, set with --init-from, into a smaller model of the same kind.

    \b
    osrerank distill --init-from mono --layers 3 --recipe tinybert-listwise --data examples=squad.jsonl --output small
    osrerank distill --init-from mono --student small --recipe logits --data examples=squad.jsonl --output small-mono

    Recipes: simplified-tinybert (the default; hard=false is its one-step variant), tinybert-listwise, logits.
    """
    from osrerank.training.fit import distill as fit

    if layers is None and student is None:
        raise click.UsageError("pass --layers, --student or both")
    if isinstance(layers, int) and student is not None:
        raise click.UsageError(
            f"--layers is {layers}, but with --student it must list the teacher's layers that the student learns from, "
            "such as 1,2,5,6"
        )
    request = create_training_request(options, "simplified-tinybert")
    print_output(fit(request, layers=layers or 0, student=student))
