"""What stands in docker/, read as its programs read it, and built and started without an engine."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import ROOT

DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
DOCKERFILE = DOCKER / "Dockerfile"


def program(name: str) -> str:
    """The path of a program that a development dependency installs."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def compose(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What `docker-compose` says of compose.yaml with all profiles, without the variables of this process."""
    known = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})}
    command = [
        program("docker-compose"),
        "--file",
        str(COMPOSE),
        "--env-file",
        os.devnull,
        "--profile",
        "*",
        *arguments,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=known).stdout


@functools.cache
def project() -> dict[str, Any]:
    """compose.yaml as Compose understands it: anchors and defaults filled in, short forms written out."""
    content: dict[str, Any] = json.loads(compose("config", "--format", "json"))
    return content


def run_secrets(folder: Path) -> None:
    subprocess.run(["sh", str(DOCKER / "secrets.sh"), str(folder)], check=True, timeout=30)


@dataclass(frozen=True)
class Stage:
    """A stage of a Dockerfile: its base, and its instructions as (keyword, argument)."""

    base: str
    instructions: tuple[tuple[str, str], ...]

    def last(self, keyword: str) -> str | None:
        return next((argument for word, argument in reversed(self.instructions) if word == keyword), None)


def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    name = ""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        keyword, _, argument = line.partition(" ")
        if keyword == "ARG":
            key, _, value = argument.partition("=")
            arguments["${" + key + "}"] = value
        elif keyword == "FROM":
            base, _, name = argument.partition(" AS ")
            found[name] = Stage(arguments.get(base, base), ())
        elif keyword:
            found[name] = Stage(found[name].base, (*found[name].instructions, (keyword, argument)))
    return found


class Builder:
    """Runs a Dockerfile's steps on this machine, the absolute paths that they name moved below a folder.

    It knows WORKDIR, COPY, RUN and ENV PATH, which is what the stages that install use. It has no container: what is
    installed on this machine is at hand too, but Python packages, which come from a fresh virtual environment.

    Args:
        folder: stands for the root of the file system.
        python: the interpreter of the base image.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        self._base = folder / "base"
        subprocess.run([python, "-m", "venv", str(self._base)], check=True, timeout=120)

    def moved(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(?:opt|packages|source|wheels)\b)", f"{self._folder}/", text)

    def build(self, name: str) -> dict[str, str]:
        """Run a stage and those below it; return its environment."""
        stage = stages()[name]
        if stage.base in stages():
            environment = self.build(stage.base)
        else:
            environment = {**os.environ, "PATH": f"{self._base}/bin:{os.environ['PATH']}"}
        workdir = Path(environment.get("WORKDIR", str(self._folder)))
        for keyword, argument in stage.instructions:
            if keyword == "WORKDIR":
                workdir = Path(self.moved(argument))
                workdir.mkdir(parents=True, exist_ok=True)
                environment["WORKDIR"] = str(workdir)
            elif keyword == "ENV":
                assert argument.startswith("PATH="), argument
                environment["PATH"] = self.moved(argument.removeprefix("PATH=")).replace("$PATH", environment["PATH"])
            elif keyword == "COPY":
                self._copy(argument, workdir)
            else:
                assert keyword == "RUN", keyword
                subprocess.run(self.moved(argument), shell=True, check=True, cwd=workdir, env=environment, timeout=900)
        return environment

    def _copy(self, argument: str, workdir: Path) -> None:
        *sources, target = shlex.split(argument)
        if sources[0].startswith("--from="):
            self.build(sources[0].removeprefix("--from="))
            return  # all stages share the folder, and the paths are the same in both
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, workdir / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, workdir / target)
