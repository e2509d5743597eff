"""Everything that waits for a GPU, tiny, on this machine: ``make gpu-rehearsal``."""

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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-m", "tools.gpu.rehearse", str(tmp_path / "rehearsal")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    assert "rehearsed" in found.stdout
    assert "bitwise True" in found.stdout
