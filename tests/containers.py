"""Builds the image of docker/ and runs its services as processes of this machine, where there is no engine."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.docker_files import inherited, project, stages
from tests.servers import ROOT, free_port
from tests.waiting import wait_until

READY_S = 90.0


class Builder:
    """Runs a Dockerfile's steps on this machine, with the paths that they name moved below a folder.

    It knows WORKDIR, COPY, RUN and ENV PATH, which is what the stages that install use. It has no container: programs
    of this machine are at hand, but no Python packages of it, since all start from a fresh virtual environment.

    Args:
        folder: stands for the root of the file system.
        python: the interpreter of the base image.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        self._base = folder / "base"
        subprocess.run([python, "-m", "venv", str(self._base)], check=True, timeout=120)

    def build(self, name: str) -> dict[str, str]:
        """Run a stage and those that it needs; return its environment."""
        stage = stages()[name]
        if stage.base in stages():
            environment = self.build(stage.base)
        else:
            environment = {**os.environ, "PATH": f"{self._base}/bin:{os.environ['PATH']}"}
            environment.pop("PYTHONPATH", None)
        for keyword, argument in stage.instructions:
            match keyword:
                case "WORKDIR":
                    environment["PWD"] = self._moved(argument)
                    Path(environment["PWD"]).mkdir(parents=True, exist_ok=True)
                case "ENV":
                    assert argument.startswith("PATH="), argument
                    path = self._moved(argument.removeprefix("PATH="))
                    environment["PATH"] = path.replace("$PATH", environment["PATH"])
                case "COPY":
                    self._copy(argument, Path(environment["PWD"]))
                case "RUN":
                    command = ["sh", "-c", self._moved(argument)]
                    subprocess.run(command, check=True, cwd=environment["PWD"], env=environment, timeout=900)
                case _:
                    raise AssertionError(f"{keyword} is not known here")
        return environment

    def _moved(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(?:opt|packages|source|wheels)\b)", f"{self._folder}/", text)

    def _copy(self, argument: str, workdir: Path) -> None:
        *sources, target = shlex.split(argument)
        if sources[0].startswith("--from="):
            assert sources[1:] == [target]
            self.build(sources[0].removeprefix("--from="))
            return  # the stages share the folder, so that it is there already
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, workdir / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, workdir / target)


class Service:
    """A program of a deployment as a process of this machine.

    Args:
        command: what is run.
        environment: all of its variables.
        log: file for what it prints; it works in the folder beside it.
        grace_s: seconds that it has to stop.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, grace_s: float = 60.0) -> None:
        self.command, self.environment, self.log, self.grace_s = command, environment, log, grace_s

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, cwd=self.log.parent, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return when something holds, and fail if the process ends before."""
        wait_until(lambda: holds() or self.process.poll() is not None, READY_S, self.log.read_text)
        assert self.process.poll() is None, self.log.read_text()[-2000:]

    def stop(self) -> int:
        """Stop it as an engine does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.grace_s)


class Container(Service):
    """A service's command in the environment that compose.yaml gives it, on a port of its own.

    Args:
        name: of the service.
        image: the environment to start from; its PATH has the program.
        secrets: stands for /run/secrets.
        folder: where it works and logs.
    """

    def __init__(self, name: str, image: dict[str, str], secrets: Path, folder: Path) -> None:
        service = project()["services"][name]
        target = service["build"]["target"]
        check = json.loads((inherited(target, "HEALTHCHECK") or "").partition(" CMD ")[2])
        if "healthcheck" in service:
            check = service["healthcheck"]["test"][1:]
        self.port, self.probe_port = free_port(), free_port()
        self._check = self._here(check)
        names, values = zip(*service["environment"].items(), strict=True)
        clean = {key: value for key, value in image.items() if not key.startswith("OSRERANK_")}
        of_image = dict(re.findall(r"(OSRERANK_\w+)=(\S+)", inherited(target, "ENV") or ""))
        given = dict(zip([*of_image, *names], self._here([*of_image.values(), *values]), strict=True))
        command = self._here(service.get("command") or json.loads(inherited(target, "CMD") or ""))
        super().__init__(command, {**clean, **given, "OSRERANK_SECRETS_DIR": str(secrets)}, folder / f"{name}.log")

    @property
    def is_healthy(self) -> bool:
        checked = subprocess.run(
            self._check, env=self.environment, cwd=self.log.parent, capture_output=True, check=False
        )
        return checked.returncode == 0

    def _here(self, words: list[str] | tuple[str, ...]) -> list[str]:
        """Return words with this machine's address and the port of its own, where they name the container's."""
        port_map = {"8088": self.port, "9100": self.port, "8090": self.probe_port}
        here = [re.sub(r"\b(8088|9100|8090)\b", lambda found: str(port_map[found[0]]), word) for word in words]
        return [word.replace("0.0.0.0", "127.0.0.1") for word in here]
