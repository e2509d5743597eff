"""Show the progress of a long command: a bar on a terminal, or else periodic lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

INTERVAL_S = 5.0
"""The default minimum time between two lines, in seconds."""


class ProgressLines:
    """Writes lines about a command's progress to a file or pipe, where a bar cannot be shown, but not to a terminal.

    Args:
        file: the file to write to. If None, lines go to standard error.
        interval_s: the minimum time between two lines, in seconds.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self, file: TextIO | None = None, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = sys.stderr if file is None else file
        self._interval_s = interval_s
        self._clock = clock
        self._began_s = self._last_line_at_s = clock()
        self._is_enabled = not self._file.isatty()

    def report(self, n_done: int, total: int | None, unit: str) -> None:
        """Write a line such as ``300 of 1,000 texts, 25.0 a second, 28 s left``, at most every `interval_s` seconds.

        Args:
            n_done: the number of items done since the command began.
            total: the number of all items, or None if it is unknown.
            unit: the name of the items, in the plural.
        """
        now_s = self._clock()
        if not self._is_enabled or now_s - self._last_line_at_s < self._interval_s:
            return
        self._last_line_at_s = now_s
        rate = n_done / (now_s - self._began_s)
        line = f"{n_done:,} {unit}" if total is None else f"{n_done:,} of {total:,} {unit}"
        line += f", {rate:,.1f} a second"
        if total is not None and rate > 0:
            line += f", {(total - n_done) / rate:,.0f} s left"
        self._file.write(f"{line}\n")
        self._file.flush()


@contextmanager
def show_document_progress() -> Iterator[Callable[[int, int], None]]:
    """Show a command's progress on standard error. Yield a function of the numbers of done and of all documents."""
    from rich import progress  # noqa: PLC0415 - only the command line needs it
    from rich.console import Console  # noqa: PLC0415 - see above

    console = Console(stderr=True)
    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]:,.0f} documents/s"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task_id = bar.add_task("", total=None, rate=0.0)
        lines = ProgressLines()

        def report(n_done: int, total: int) -> None:
            elapsed_s = bar.tasks[0].elapsed or 0.0
            rate = n_done / elapsed_s if elapsed_s else 0.0
            bar.update(task_id, completed=n_done, total=total, rate=rate)
            lines.report(n_done, total, "documents")

        yield report
