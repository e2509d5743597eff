"""The type of parameters that name a file to read."""

from pathlib import Path
from typing import Any

import click

from osrerank.formats.ir_datasets import is_dataset


class Source(click.Path):
    """A file that exists, or a collection of ir_datasets as ``ir_datasets:NAME``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; a collection's name is one, too."""
        return Path(value) if is_dataset(value) else super().convert(value, param, ctx)


SOURCE = Source(exists=True, dir_okay=False, path_type=Path)
