"""Describe the machine beside the figures that were measured on it."""

import os

from osrerank._platform import usable_cores
from osrerank.doctor import cpu_name, installed_versions

LIBRARIES = ("onnxruntime", "torch", "transformers", "numpy", "tokenizers")


def machine() -> str:
    """Return the processor, usable cores, load average of the last minute, and versions of libraries, in a line."""
    listed = ", ".join(f"{name} {number}" for name, number in installed_versions(LIBRARIES).items())
    return f"{cpu_name()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}; {listed}"
