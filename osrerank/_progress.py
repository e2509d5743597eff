"""Progress for those who watch no terminal: a line every few seconds."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

EVERY_S = 5.0


class ProgressLines:
    """Writes lines about how far a long command is, to a file or pipe where a bar would be of no use.

    Args:
        file: where to; standard error when None.
        every_s: time between lines.
        clock: gives seconds.
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
        """Write a line if it is time for one: how many are done, of how many, how many a second, and how long it takes.

        Args:
            done: since the command began.
            total: how many there are; None where that is not known.
            unit: of what, in the plural.
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
