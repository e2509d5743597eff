"""All that is checked on a GPU, with tiny models on this machine: ``make gpu-rehearsal``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_step_is_rehearsed(tmp_path: Path) -> None:
    folders = [ROOT, ROOT / "index_loaders", ROOT / "workers"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.gpu", "--tiny", "--output", str(tmp_path / "gpu.json")]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert not found["failed"]
    assert {row["step"] for row in found["rows"]} == {"parity", "speed", "vectors", "worker", "training"}
    (resumed,) = (row for row in found["rows"] if row["step"] == "training")
    assert resumed["bitwise the same"] is True
