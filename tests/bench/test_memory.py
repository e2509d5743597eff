"""Peak memory of the CPU backend: ``pytest -m bench -s tests/bench/test_memory.py``."""

import os
import subprocess
import sys

import pytest

from osrerank.scoring.locate import SHIPPED
from tests import servers

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

CANDIDATES = int(os.environ.get("BENCH_CANDIDATES", "1000"))
MAX_MIB = 1024
SCORING = """
import sys
from pathlib import Path
from osrerank.scoring.registry import load_scorer
def peak():
    rows = Path("/proc/self/status").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("VmHWM")))
scorer = load_scorer("osrerank/e5-small")
count = int(sys.argv[1])
scorer.score("what causes low pressure", ["pressure"], [(0,)])
loaded = peak()
documents = ["pressure " * 600 + str(number) for number in range(count)]
scores = scorer.score("what causes low pressure", documents, [(number,) for number in range(count)])
assert scores.truncated == count and not scores.failures
print(loaded, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_peak_memory_of_scoring_a_thousand_long_candidates() -> None:
    command = [sys.executable, "-c", SCORING, str(CANDIDATES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=servers.ROOT)
    loaded, peak = (int(number) / 1024 for number in done.stdout.split())
    size = (SHIPPED / "e5-small" / "onnx" / "model_int8.onnx").stat().st_size / 2**20
    print(
        f"\n{CANDIDATES} candidates of 512 tokens: {loaded:.0f} MiB loaded, peak {peak:.0f} MiB; graph {size:.0f} MiB"
    )
    assert peak - size < MAX_MIB
