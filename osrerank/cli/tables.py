"""Print tables and progress bars in the terminal, with rich."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich import progress
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Item = TypeVar("Item")
FILE_WIDTH = 240
"""The width of output to a file or a pipe, in characters. No table is wider."""


def console(*, stderr: bool = False) -> Console:
    """Return a console that does not truncate output to a file or a pipe."""
    terminal = Console(stderr=stderr)
    return terminal if terminal.is_terminal else Console(stderr=stderr, width=FILE_WIDTH)


def track(items: Iterable[Item]) -> Iterable[Item]:
    """Iterate over items. If standard error is a terminal, a progress bar is shown."""
    screen = console(stderr=True)
    return progress.track(items, "Searching", console=screen, disable=not screen.is_terminal)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column is left-aligned text. The other columns are right-aligned numbers."""
    rich_table = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        rich_table.add_column(column, justify="right" if index else "left", no_wrap=index > 0)
    for row in rows:
        rich_table.add_row(*row)
    return rich_table
