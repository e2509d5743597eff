"""What stands in docker/, read as its programs read it."""

import functools
import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import ROOT

DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
CLUSTER = DOCKER / "compose.cluster.yaml"
DOCKERFILE = DOCKER / "Dockerfile"


def program(name: str) -> str:
    """The path of a program that a development dependency installs."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def compose(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What `docker-compose` says of compose.yaml with all profiles, without the variables of this process."""
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})}
    files = ["--file", str(COMPOSE), "--env-file", os.devnull]
    command = [program("docker-compose"), *files, "--profile", "*", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=variables).stdout


@functools.cache
def project() -> dict[str, Any]:
    """compose.yaml as Compose understands it: anchors and defaults filled in, short forms written out."""
    content: dict[str, Any] = json.loads(compose("config", "--format", "json"))
    return content


@functools.cache
def cluster() -> dict[str, Any]:
    """compose.yaml with compose.cluster.yaml beside it, as Compose understands both."""
    content: dict[str, Any] = json.loads(compose("--file", str(CLUSTER), "config", "--format", "json"))
    return content


def check_schema(file: Path) -> None:
    """Check a file by the Compose specification's schema."""
    command = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


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
    instruction: dict[str, Stage] = {}
    name = ""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        keyword, _, argument = line.partition(" ")
        if keyword == "ARG":
            key, _, value = argument.partition("=")
            arguments["${" + key + "}"] = value
        elif keyword == "FROM":
            base, _, name = argument.partition(" AS ")
            instruction[name] = Stage(arguments.get(base, base), ())
        elif keyword:
            instruction[name] = Stage(instruction[name].base, (*instruction[name].instructions, (keyword, argument)))
    return instruction


def inherited(name: str, keyword: str) -> str | None:
    """The last argument of an instruction, in a stage or in those it is built from."""
    stage = stages()[name]
    instruction = stage.last(keyword)
    return inherited(stage.base, keyword) if instruction is None and stage.base in stages() else instruction
