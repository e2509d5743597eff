"""The peak memory of a script, run in a process of its own."""

import subprocess
import sys

from tests.servers import ROOT

# The peak of the process itself: what getrusage tells includes the process that started it.
PEAK = """
from pathlib import Path
print([row.split()[1] for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM")][0])
"""


def peak_mib(script: str, *arguments: str) -> float:
    """Run a script with arguments; return its resident memory at the highest, in MiB."""
    command = [sys.executable, "-c", script + PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return int(done.stdout.splitlines()[-1]) / 1024
