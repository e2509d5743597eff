"""``osrerank pretrain``: train an encoder on a collection's texts by masked language modelling, before ``train``."""

from pathlib import Path
from typing import Any

import click

from osrerank.cli.options import MODEL, option_parser
from osrerank.cli.path_types import FILE, FOLDER
from osrerank.cli.train import print_output, print_progress, recipe_option, time_option


@click.command()
@click.option(
    "--corpus",
    required=True,
    multiple=True,
    type=FILE,
    help="Texts: JSON lines with a field text, or one text per line.",
)
@click.option("--init-from", "source", type=MODEL, help="Model to start from: a directory or a hub id.")
@click.option(
    "--new",
    callback=option_parser(default_name="layers"),
    help="Size of a new BERT to start from: layers=2,hidden=128,heads=4,vocabulary=8000.",
)
@recipe_option
@click.option("--output", "-o", required=True, type=FOLDER, help="Directory to write.")
@time_option
def pretrain(
    *,
    corpus: tuple[Path, ...],
    source: Path | None,
    new: dict[str, Any] | None,
    recipe: dict[str, Any] | None,
    output: Path,
    max_minutes: float | None,
) -> None:
    """Train an encoder on unlabelled texts, before it is trained to rank.

    \b
    osrerank pretrain --init-from bert-large --recipe target-corpus --corpus collection.jsonl --output bert-marco
    osrerank pretrain --new layers=2,hidden=128,vocabulary=4000 --corpus corpus.jsonl --output tiny

    Recipes: masked (the default), target-corpus.
    """
    from osrerank.training.pretrain import pretrain as fit
    from osrerank.training.recipes import Recipe

    if (source is None) == (new is None):
        raise click.UsageError("pass either --init-from or --new")
    start = source or _create_encoder(new or {}, corpus, output)
    parsed_recipe = Recipe.from_options(recipe, default="masked")
    directory = fit(start, output, corpus, parsed_recipe, max_minutes=max_minutes, report=print_progress)
    print_output(directory, "use it as --init-from of osrerank train")


def _create_encoder(size_options: dict[str, Any], corpus: tuple[Path, ...], output: Path) -> Path:
    """Return the directory of an untrained encoder, OUTPUT.new. If an interrupted run has created it, it is reused."""
    from osrerank.errors import ConfigError
    from osrerank.training.pretrain import EncoderSize, create_encoder

    start = output.with_name(f"{output.name}.new")
    try:
        size = EncoderSize(**size_options)
    except TypeError:
        unknown = next(name for name in size_options if name not in EncoderSize.__annotations__)
        reason = f"--new has no option {unknown!r}; its options are {', '.join(EncoderSize.__annotations__)}"
        raise ConfigError(reason, setting="new", source="flag") from None
    if start.exists():
        return start
    return create_encoder(corpus, start, size)
