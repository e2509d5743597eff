"""Print tables for people, with rich."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDE = 240  # width of output to a file or pipe, where no table may be cut


def console(*, stderr: bool = False) -> Console:
    """Return a console that cuts no table if the output goes to a file or a pipe."""
    terminal = Console(stderr=stderr)
    return terminal if terminal.is_terminal else Console(stderr=stderr, width=WIDE)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table; its first column is left-aligned text, the others are right-aligned numbers."""
    drawn = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="right" if index else "left", no_wrap=index > 0)
    for row in rows:
        drawn.add_row(*row)
    return drawn
