"""Tables for people, made with rich."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDE = 240  # width without a terminal: a pipe must not lose a table's right half


def console(*, stderr: bool = False) -> Console:
    """Return a console that never cuts a table that goes to a file or a pipe."""
    terminal = Console(stderr=stderr)
    return terminal if terminal.is_terminal else Console(stderr=stderr, width=WIDE)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column is left-aligned text and whose others are right-aligned numbers."""
    made = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if index else "left", no_wrap=index > 0)
    for row in rows:
        made.add_row(*row)
    return made
