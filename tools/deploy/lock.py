"""Write docker/requirements, the packages of the images with hashes: ``python -m tools.deploy.lock`` (``make lock``).

pip chooses wheels for the Python and the C library of the base image, under constraints.txt, without installing them.
The hashes are those of the package index.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "requirements"
PYTHON = "3.11"
GLIBC_MINOR = 36
"""The minor version of the base image's C library, Debian 12's glibc 2.36."""
LEGACY_PLATFORMS = ("manylinux2014", "manylinux2010", "manylinux1")
EXTRAS: Mapping[str, Sequence[str]] = {"cpu": ("workers", "server"), "gpu": ("torch", "workers", "server")}
MACHINES: Mapping[str, Sequence[str]] = {
    "build": ("x86_64", "aarch64"),
    "cpu": ("x86_64", "aarch64"),
    "gpu": ("x86_64",),
    "sbom": ("x86_64", "aarch64"),
}
IGNORED_VARIABLES = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT")
"""Variables that add other sources of packages, whose hashes may differ."""
TOOLS = {"sbom": ["cyclonedx-bom>=7.5"]}
"""The packages of tools that are used while an image is built."""
HEADER = "# Written by `make lock` from pyproject.toml and constraints.txt, for Linux on {machines}, Python {python}.\n"


def requirements(name: str) -> list[str]:
    """Return an image's requirements: those of the base install and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if name == "build":
        return list(project["build-system"]["requires"])
    if name in TOOLS:
        return TOOLS[name]
    optional = project["project"]["optional-dependencies"]
    extras = [requirement for extra in EXTRAS[name] for requirement in optional[extra]]
    return [*project["project"]["dependencies"], *extras]


def lock(name: str) -> str:
    """Return an image's requirements file: one line per package, with the hashes of its wheels for all machines."""
    hashes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for machine in MACHINES[name]:
        for package, version, digest in _resolve(requirements(name), machine):
            hashes[package, version].add(digest)
    lines = [
        f"{package}=={version}" + "".join(f" --hash=sha256:{digest}" for digest in sorted(digests))
        for (package, version), digests in sorted(hashes.items())
    ]
    header = HEADER.format(machines=" and ".join(MACHINES[name]), python=PYTHON)
    return header + "\n".join(lines) + "\n"


def _resolve(required: Sequence[str], machine: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and SHA-256 of each wheel that pip would install.

    Raises:
        subprocess.CalledProcessError: pip finds no compatible wheels.
    """
    environment = {name: value for name, value in os.environ.items() if name not in IGNORED_VARIABLES}
    environment["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, "--only-binary=:all:", "-c", "constraints.txt"]
        command += ["--python-version", PYTHON, "--implementation", "cp", *_tag_options(machine), *required]
        subprocess.run(command, check=True, cwd=ROOT, env=environment)  # noqa: S603 - pip, with our requirements
        wheels = json.loads(report.read_text(encoding="utf-8"))["install"]
    for wheel in wheels:
        digest = wheel["download_info"]["archive_info"]["hashes"]["sha256"]
        yield canonicalize_name(wheel["metadata"]["name"]), wheel["metadata"]["version"], digest


def _tag_options(machine: str) -> Iterator[str]:
    """Yield pip's options for the platforms and ABIs that the base image supports."""
    platforms = [f"manylinux_2_{minor}" for minor in range(GLIBC_MINOR, 4, -1)]
    for platform in (*platforms, *LEGACY_PLATFORMS):
        yield from ("--platform", f"{platform}_{machine}")
    for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none"):
        yield from ("--abi", abi)


if __name__ == "__main__":
    for name in sys.argv[1:] or MACHINES:
        (FOLDER / f"{name}.txt").write_text(lock(name), encoding="utf-8")
