"""The notebooks run from top to bottom, each cell as a person would run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def program(notebook: Path) -> str:
    """Return the cells as one program."""
    cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    return "\n".join(["import matplotlib", "matplotlib.use('agg')", *("".join(cell["source"]) for cell in cells)])


def test_there_are_notebooks() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["first_look.ipynb"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "notebook.py"
    file.write_text(program(notebook), encoding="utf-8")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'applied': True" in done.stdout
    found = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("RR@10")]
    assert found[1] > found[0]
    assert min(found) > 0.7
