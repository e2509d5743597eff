"""The documented way from nothing to a searchable model, command by command."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT

pytest.importorskip("torch")
pytest.importorskip("onnx")

SLICE = ROOT / "tests" / "data" / "squad-200" / "questions.json"


def documented() -> list[str]:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    block = re.search(r"## From nothing to a searchable model.*?```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@pytest.mark.slow
@pytest.mark.timeout(900)  # nine programs, most of them import torch
def test_the_documented_commands_make_a_searchable_model(tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_bytes(SLICE.read_bytes())
    shown = ""
    for line in documented():
        program, *arguments = shlex.split(line)
        assert program == "osrerank"
        command = [sys.executable, "-m", "osrerank", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        shown = done.stdout
    made = tmp_path / "mono-int8" / "onnx" / "model_int8.onnx"
    assert made.stat().st_size < 3_000_000
    value = re.search(r"0?\.\d+", shown)
    assert value is not None
    assert float(value[0]) > 0.3
    readme = (tmp_path / "mono" / "README.md").read_text()
    assert "200 examples" in readme
    assert (tmp_path / "mono" / "curve.csv").read_text().count("\n") == 41
