"""Render the chart's defaults as plain manifests: ``python -m tools.deploy.manifests`` (``make manifests``).

What KEDA's custom resource needs is in a file of its own, so that the rest can be applied without KEDA.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.deploy.helm import find_helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker" / "chart"
FOLDER = ROOT / "docker" / "kubernetes"
HEADER = "# Rendered from docker/chart by `make manifests`: change the chart, not this file. More: docs/deploy.md.\n"
OF_HELM = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by):.*\n|^# Source: .*\n", re.MULTILINE)


def render(*options: str, helm: str | None = None, release: str = "osrerank", namespace: str = "osrerank") -> str:
    """Return what Helm renders, as YAML documents.

    Raises:
        subprocess.CalledProcessError: it renders nothing; ``stderr`` says why.
        FileNotFoundError: there is no Helm.
    """
    command = [helm or find_helm(), "template", release, str(CHART), "--namespace", namespace, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words


def manifests() -> dict[str, str]:
    """Return the plain manifests by their file's name."""
    documents = [part for part in re.split(r"^---\n", OF_HELM.sub("", render()), flags=re.MULTILINE) if part.strip()]
    scaled = [document for document in documents if "kind: ScaledObject" in document]
    rest = [document for document in documents if document not in scaled]
    return {"osrerank.yaml": _joined(rest), "autoscaling.yaml": _joined(scaled)}


def _joined(documents: Sequence[str]) -> str:
    return HEADER + "---\n".join(document.rstrip() + "\n" for document in documents)


def main() -> int:
    """Write the manifests."""
    for name, text in manifests().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
