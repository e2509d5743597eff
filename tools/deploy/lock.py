"""Write docker/requirements: every package of the images, with hashes: ``python -m tools.deploy.lock`` (``make lock``).

pip chooses under constraints.txt, for the Python and the C library of the base image, and only wheels; nothing is
installed, and most is not downloaded. The hashes are the index's for the wheels that pip chose.
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
NEWEST_GLIBC = 36
"""Debian 12's is 2.36."""
LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")
EXTRAS: Mapping[str, Sequence[str]] = {"cpu": ("workers", "server"), "gpu": ("torch", "workers", "server")}
MACHINES: Mapping[str, Sequence[str]] = {
    "build": ("x86_64", "aarch64"),
    "cpu": ("x86_64", "aarch64"),
    "gpu": ("x86_64",),
    "sbom": ("x86_64", "aarch64"),
}
ADDED = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT")
"""Variables by which a machine adds to the index; what comes from there may have other hashes."""
TOOLS = {"sbom": ["cyclonedx-bom>=7.5"]}
"""What is used beside the images' own packages."""
HEADER = "# Written by `make lock` from pyproject.toml and constraints.txt, for Linux on {machines}, Python {python}.\n"


def requirements(name: str) -> list[str]:
    """Return what an image's packages are asked for by: those of the base install and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if name == "build":
        return list(project["build-system"]["requires"])
    if name in TOOLS:
        return TOOLS[name]
    optional = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *(one for extra in EXTRAS[name] for one in optional[extra])]


def lock(name: str) -> str:
    """Return the file of an image: a line for each package, with the hashes of its wheels on each machine."""
    hashes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for machine in MACHINES[name]:
        for package, version, digest in _chosen(requirements(name), machine):
            hashes[package, version].add(digest)
    lines = [
        f"{package}=={version}" + "".join(f" --hash=sha256:{digest}" for digest in sorted(digests))
        for (package, version), digests in sorted(hashes.items())
    ]
    header = HEADER.format(machines=" and ".join(MACHINES[name]), python=PYTHON)
    return header + "\n".join(lines) + "\n"


def _chosen(wanted: Sequence[str], machine: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and SHA-256 of each wheel that pip would install.

    Raises:
        subprocess.CalledProcessError: pip finds no wheels that fit together.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ADDED}
    environment["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, "--only-binary=:all:", "-c", "constraints.txt"]
        command += ["--python-version", PYTHON, "--implementation", "cp", *_tags(machine), *wanted]
        subprocess.run(command, check=True, cwd=ROOT, env=environment)  # noqa: S603 - pip, with words of our own
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    for one in chosen:
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        yield canonicalize_name(one["metadata"]["name"]), one["metadata"]["version"], digest


def _tags(machine: str) -> Iterator[str]:
    newest = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    for platform in (*newest, *(f"{name}_{machine}" for name in LEGACY)):
        yield from ("--platform", platform)
    for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none"):
        yield from ("--abi", abi)


def main() -> int:
    """Write the files, or those that are named."""
    for name in sys.argv[1:] or MACHINES:
        (FOLDER / f"{name}.txt").write_text(lock(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
