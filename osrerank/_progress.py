"""Show the progress of a long command: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

EVERY_S = 5.0


class ProgressLines:
    """Writes lines about a command's progress to a file or pipe, which cannot show a bar.

    Args:
        file: the file to write to; None for standard error.
        every_s: the time between two lines, in seconds.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self, file: TextIO | None = None, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = sys.stderr if file is None else file
        self._every_s = every_s
        self._clock = clock
        self._began_s = self._last_s = clock()
        self.enabled = not self._file.isatty()

    def report(self, done: int, total: int | None, unit: str) -> None:
        """Write a line, if one is due, with the number of items done and of all items, the rate, and the time left.

        Args:
            done: the number of items done since the command began.
            total: the number of all items; None if it is not known.
            unit: the name of the items, in the plural.
        """
        now_s = self._clock()
        if not self.enabled or now_s - self._last_s < self._every_s:
            return
        self._last_s = now_s
        rate = done / (now_s - self._began_s)
        line = f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"
        line += f", {rate:,.1f} a second"
        if total is not None and rate > 0:
            line += f", {(total - done) / rate:,.0f} s left"
        self._file.write(f"{line}\n")
        self._file.flush()


@contextmanager
def show_progress(task: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show a command's progress on standard error; yield a function that takes the number of items done and of all.

    Args:
        task: a description of what the command does.
        unit: the name of the items, in the plural.
    """
    from rich.console import Console  # noqa: PLC0415 - only the command line needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415 - only the command line needs it
    from rich.progress import TimeRemainingColumn as TimeLeft  # noqa: PLC0415 - only the command line needs it

    screen = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]:,.0f} " + f"{unit}/s"), TimeLeft())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task_id, lines = bar.add_task(task, total=None, rate=0.0), ProgressLines()

        def report(done: int, count: int) -> None:
            elapsed_s = bar.tasks[0].elapsed or 0.0
            rate = done / elapsed_s if elapsed_s else 0.0
            bar.update(task_id, completed=done, total=count, rate=rate)
            lines.report(done, count, unit)

        yield report
