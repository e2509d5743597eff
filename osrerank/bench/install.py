"""An environment of the peers' own: their pins do not go together with every version that this library allows."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from osrerank.errors import ConfigError

PINS = Path(__file__).parent / "peers.txt"
LEAST_FREE_BYTES = 4 << 30
"""The environment takes 2.2 GB, and pip unpacks beside it."""
SIGNS = {
    "No space left on device": "the disk is full; free 4 GB there, or name a directory on another disk",
    "Disk quota exceeded": "the quota is used up; free 4 GB, or name a directory on another disk",
    "NewConnectionError": "no package index can be reached; check the network and pip's settings",
    "Temporary failure in name resolution": "no package index can be reached; check the network and pip's settings",
    "ReadTimeoutError": "the package index does not answer; run the same command again",
    "No matching distribution": "the package index lacks a version that osrerank/bench/peers.txt pins",
    "ResolutionImpossible": "the pins contradict each other or pip's constraints",
}
"""What pip prints when it fails -> what it means and what to do."""


def install_peers(directory: Path, report: Callable[[str], None]) -> Mapping[str, str]:
    """Make a virtual environment and install the peers; run again, it goes on where it stopped.

    Args:
        directory: of the environment; it is made, or was made by this function.
        report: gets a line for each step.

    Returns:
        The versions of what peers.txt pins, by name.

    Raises:
        ConfigError: the directory has something else in it, there is no space, or pip fails; the message says why.
    """
    _check(directory)
    if not _has_pip(directory):
        report(f"making a virtual environment in {directory}")
        _run([sys.executable, "-m", "venv", str(directory)], directory)
    python = str(python_of(directory))
    report(f"installing what {PINS} pins; what is there already stays")
    _run([python, "-m", "pip", "install", "--no-input", "--requirement", str(PINS)], directory)
    return _versions(python, directory)


def python_of(directory: Path) -> Path:
    """Return the interpreter of an environment.

    Raises:
        ConfigError: there is none.
    """
    path = _python(directory)
    if not path.exists():
        reason = f"{directory} has no Python; make it with osrerank bench --install-peers {directory}"
        raise ConfigError(reason, setting="peers", source="flag")
    return path.absolute()


def _python(directory: Path) -> Path:
    return directory / "Scripts" / "python.exe" if os.name == "nt" else directory / "bin" / "python"


def _check(directory: Path) -> None:
    """Refuse a directory that is something else, and a disk that is too small."""
    if directory.exists() and any(directory.iterdir()) and not (directory / "pyvenv.cfg").is_file():
        reason = f"{directory} has files and is no virtual environment; name an empty or a new directory"
        raise ConfigError(reason, setting="install-peers", source="flag")
    nearest = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    free = shutil.disk_usage(nearest).free
    if not _has_pip(directory) and free < LEAST_FREE_BYTES:
        reason = f"{nearest} has {free / 1e9:.1f} GB free, and the peers need {LEAST_FREE_BYTES / 1e9:.1f}; free some"
        raise ConfigError(reason, setting="install-peers", source="flag")


def _has_pip(directory: Path) -> bool:
    """Return whether the environment was made whole: venv installs pip last."""
    path = _python(directory)
    if not path.exists():
        return False
    return subprocess.run([str(path), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0  # noqa: S603 - an interpreter that the caller named


def _versions(python: str, directory: Path) -> Mapping[str, str]:
    listed = json.loads(_run([python, "-m", "pip", "list", "--format", "json"], directory))
    found = {_normal(entry["name"]): entry["version"] for entry in listed}
    lines = [line.partition("==")[0].strip() for line in PINS.read_text("utf-8").splitlines()]
    names = [name for name in lines if name and not name.startswith("#")]
    return {name: found[_normal(name)] for name in names if _normal(name) in found}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _run(command: list[str], directory: Path) -> str:
    """Run a command and return what it printed.

    Raises:
        ConfigError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - commands of this module
    if done.returncode == 0:
        return done.stdout
    printed = f"{done.stdout}\n{done.stderr}"
    cause = next((meaning for sign, meaning in SIGNS.items() if sign in printed), "")
    last = next((line for line in reversed(printed.splitlines()) if "ERROR" in line), printed.strip()[-300:])
    reason = f"{directory}: the peers cannot be installed: {cause or last}; the same command goes on where it stopped"
    raise ConfigError(reason, setting="install-peers", source="flag")
