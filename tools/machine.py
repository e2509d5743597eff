"""Describe the machine of a measurement."""

import os

from osrerank._platform import usable_cores
from osrerank.doctor import find_versions, read_cpu_name

LIBRARIES = ("onnxruntime", "torch", "transformers", "numpy", "tokenizers")


def machine() -> str:
    """Return the processor, its usable cores, the load average of the last minute, and versions of libraries."""
    versions = ", ".join(f"{name} {version}" for name, version in find_versions(LIBRARIES).items())
    return f"{read_cpu_name()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}; {versions}"
