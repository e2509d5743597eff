"""Describe this machine for benchmark reports: its processor, cores, load and library versions."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from osrerank._platform import usable_cores

CPUINFO = Path("/proc/cpuinfo")
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")
"""Processor features that decide how fast int8 is: dot products of bytes (VNNI, AMX; asimddp, i8mm on ARM), wide
registers."""
LIBRARIES = ("onnxruntime", "torch", "transformers", "numpy", "tokenizers")


def machine() -> dict[str, Any]:
    """Return the processor, usable cores, load average of the last minute, and versions of Python and libraries."""
    return {
        "cpu": cpu_name(),
        "features": cpu_features(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": versions(LIBRARIES),
    }


def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    return _field("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Return the processor's features that matter here; none if the system does not report them."""
    flags = (_field("flags") or _field("Features")).split()
    return [name for name in FEATURES if name in flags]


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    installed = {}
    for name in libraries:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def _field(name: str) -> str:
    """Return the value of the first line of ``/proc/cpuinfo`` that begins with a name; "" if there is none."""
    if not CPUINFO.exists():
        return ""
    lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
