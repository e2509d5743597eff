"""The curve of a training: a CSV with a row for each step; a resumed training removes the rows after its checkpoint."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank.formats.files import write_atomically

FIXED = ("step", "rate", "loss")
CURVE_FILE = "curve.csv"


class Curve:
    """The rows of a curve: step, rate, loss, parts of the loss and, after a measurement, the measure.

    Args:
        path: the path of the CSV.
        done: how many steps a resumed training has done; rows of later steps are removed.
    """

    def __init__(self, path: Path, done: int) -> None:
        self._path = path
        self._rows = [row for row in read_curve(path) if int(row["step"]) <= done] if path.exists() else []
        self._written = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row and write it to the file."""
        values = {name: str(value) if isinstance(value, int) else f"{value:.9g}" for name, value in row.items()}
        self._rows.append(values)
        names = [*FIXED, *sorted(values.keys() - {*FIXED, "measure"}), "measure"]
        if not self._written:  # once per process: this removes rows that a killed process wrote after its checkpoint
            write_atomically(self._path, _lines(names, self._rows))
            self._written = True
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.writelines(_lines(names, [values])[1:])

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """All rows so far."""
        return self._rows


def read_curve(path: Path) -> list[dict[str, str]]:
    """Return the rows of a curve's CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _lines(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [",".join(names) + "\n", *(",".join(str(row.get(name, "")) for name in names) + "\n" for row in rows)]
