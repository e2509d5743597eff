"""The types of command-line parameters that name files and folders."""

from pathlib import Path
from typing import Any

import click

from osrerank.formats.ir_datasets import is_dataset


class SourceParam(click.Path):
    """The type of a parameter that names an existing file, or a collection of ir_datasets (``ir_datasets:NAME``)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file's path. For a collection, ``ir_datasets:NAME`` is returned as a path."""
        return Path(value) if is_dataset(value) else super().convert(value, param, ctx)


SOURCE = SourceParam(exists=True, dir_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
