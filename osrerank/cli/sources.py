"""The type of parameters that name an input file."""

from pathlib import Path
from typing import Any

import click

from osrerank.formats.ir_datasets import is_dataset


class Source(click.Path):
    """The path of an existing file, or ``ir_datasets:NAME`` for a collection of ir_datasets."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file's path, or the collection's name as a path."""
        return Path(value) if is_dataset(value) else super().convert(value, param, ctx)


SOURCE = Source(exists=True, dir_okay=False, path_type=Path)
