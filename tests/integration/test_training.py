"""The commands in docs/training.md pretrain, train, export, search and evaluate a small model."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.reproduce.forks import osrerank_program
from tests.servers import ROOT

pytest.importorskip("torch")
pytest.importorskip("onnx")

SLICE = ROOT / "tests" / "data" / "squad-200" / "questions.json"


def documented() -> str:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    block = re.search(r"## From nothing to a searchable model.*?```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return block[1]


@pytest.mark.slow
def test_the_documented_commands_train_and_export_a_model_that_ranks(tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_bytes(SLICE.read_bytes())
    program = tmp_path / "program"
    program.mkdir()
    with osrerank_program(program, os.environ) as folder:
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        command = ["bash", "-exc", documented()]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "mono-int8" / "onnx" / "model_int8.onnx"
    assert path.stat().st_size < 3_000_000
    value = re.search(r"0?\.\d+", done.stdout.rpartition("nDCG@10")[2])
    assert value is not None
    assert float(value[0]) > 0.3
    readme = (tmp_path / "mono" / "README.md").read_text()
    assert "200 examples" in readme
    assert (tmp_path / "mono" / "curve.csv").read_text().count("\n") == 41
