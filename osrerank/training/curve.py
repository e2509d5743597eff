"""Write the loss curve of a training process: a CSV file with one row for each step."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank.formats.files import write_atomically

FIRST_COLUMNS = ("step", "rate", "loss")
CURVE_FILE = "curve.csv"


class Curve:
    """Writes the CSV file, whose header is for example ``step,rate,loss,hard,soft,measure``.

    ``rate`` is the learning rate. The columns between ``loss`` and ``measure`` are the parts whose sum is the loss.
    ``measure`` is the measure of the network's rankings, such as nDCG. It is empty after steps without an evaluation.

    Args:
        path: the file.
        steps_done: the number of steps in the checkpoint from which the training resumes, or 0. A process that was
            killed after this checkpoint may have written rows of later steps. They are removed.
    """

    def __init__(self, path: Path, steps_done: int) -> None:
        self._path = path
        self._kept_rows = [row for row in read_curve(path) if int(row["step"]) <= steps_done] if path.exists() else []
        self._can_append = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row to the file."""
        # a float32, such as the loss, needs at most 9 digits
        values = {name: str(value) if isinstance(value, int) else f"{value:.9g}" for name, value in row.items()}
        loss_parts = sorted(values.keys() - {*FIRST_COLUMNS, "measure"})
        names = [*FIRST_COLUMNS, *loss_parts, "measure"]
        if self._can_append:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                _header, line = _format_lines(names, [values])
                file.write(line)
            return
        # The first call writes the file anew, without the removed rows.
        write_atomically(self._path, _format_lines(names, [*self._kept_rows, values]))
        self._can_append = True


def read_curve(path: Path) -> list[dict[str, str]]:
    """Return the rows of a curve's CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _format_lines(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the header and a line for each row. A column for which a row has no value is empty."""
    return [",".join(names) + "\n", *(",".join(str(row.get(name, "")) for name in names) + "\n" for row in rows)]
