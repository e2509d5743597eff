"""The notebooks run from top to bottom, each cell as a person would run it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
OPTIONAL = "pyterrier"
"""A package that no test environment needs, and the tag of the cells that need it."""


def program(notebook: Path, *, optional: bool) -> str:
    """Return the cells as one program, with or without those that need the optional package."""
    cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    kept_cells = [cell for cell in cells if optional or OPTIONAL not in cell["metadata"].get("tags", ())]
    return "\n".join(["import matplotlib", "matplotlib.use('agg')", *("".join(cell["source"]) for cell in kept_cells)])


def printed(name: str, folder: Path, *, optional: bool = False) -> str:
    """Return what a notebook prints."""
    pytest.importorskip("matplotlib")
    file = folder / "notebook.py"
    file.write_text(program(NOTEBOOKS / name, optional=optional), encoding="utf-8")
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def values(printed_lines: str, measure: str) -> dict[str, float]:
    """Return run -> value, of lines such as ``e5-small  nDCG@10 0.8202 RR@10 0.7897``."""
    rows = [line.split(f" {measure} ") for line in printed_lines.splitlines() if f" {measure} " in line]
    return {name.strip(): float(other_cells.split()[0]) for name, other_cells in rows}


def test_each_notebook_has_a_test() -> None:
    assert [notebook.name for notebook in sorted(NOTEBOOKS.glob("*.ipynb"))] == ["evening.ipynb", "first_look.ipynb"]


@pytest.mark.slow
@pytest.mark.long
def test_the_first_notebook_runs(tmp_path: Path) -> None:
    output = printed("first_look.ipynb", tmp_path)
    assert "'applied': True" in output
    reciprocal_ranks = [float(line.rpartition(" ")[2]) for line in output.splitlines() if line.startswith("RR@10")]
    assert reciprocal_ranks[1] > reciprocal_ranks[0]
    assert min(reciprocal_ranks) > 0.7


@pytest.mark.slow
@pytest.mark.long
def test_the_experiments_notebook_runs(tmp_path: Path) -> None:
    output = printed("evening.ipynb", tmp_path)
    ndcgs = values(output, "nDCG@10")
    assert list(ndcgs) == ["BM25", "minilm-l6", "e5-small", "e5-small + BM25"]
    assert ndcgs["e5-small + BM25"] == max(ndcgs.values())
    assert output.count(" against BM25: ") == 3
    assert output.rstrip().endswith(" e5-small")  # the first line of the written run


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec(OPTIONAL) is None, reason="needs pip install 'osrerank[pyterrier]'")
def test_the_experiments_notebook_runs_with_pyterrier(tmp_path: Path) -> None:
    *_others, bm25, reranked = printed("evening.ipynb", tmp_path, optional=True).splitlines()
    assert float(reranked.split()[1]) > float(bm25.split()[1])
