"""Render the Helm chart as plain manifests: ``python -m tools.deploy.manifests`` (``make manifests``).

KEDA's custom resource gets a file of its own, so that the others can be applied without KEDA.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.deploy.helm import find_helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker" / "chart"
FOLDER = ROOT / "docker" / "kubernetes"
HEADER = "# Rendered from docker/chart by `make manifests`: change the chart, not this file. More: docs/deploy.md.\n"
HELM_LINES = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by):.*\n|^# Source: .*\n", re.MULTILINE)


def render(*options: str) -> str:
    """Render the chart, and return its YAML documents.

    Raises:
        subprocess.CalledProcessError: Helm failed, for the reason in ``stderr``.
        FileNotFoundError: Helm is not installed.
    """
    command = [find_helm(), "template", "osrerank", str(CHART), "--namespace", "osrerank", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own chart


def manifests() -> dict[str, str]:
    """Return the plain manifests, by file name."""
    text = HELM_LINES.sub("", render())
    documents = [document for document in re.split(r"^---\n", text, flags=re.MULTILINE) if document.strip()]
    keda_documents = [document for document in documents if "kind: ScaledObject" in document]
    other_documents = [document for document in documents if "kind: ScaledObject" not in document]
    return {"osrerank.yaml": _join(other_documents), "autoscaling.yaml": _join(keda_documents)}


def _join(documents: Iterable[str]) -> str:
    return HEADER + "---\n".join(document.rstrip() + "\n" for document in documents)


if __name__ == "__main__":
    for name, text in manifests().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
