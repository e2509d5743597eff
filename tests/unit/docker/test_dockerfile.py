"""The Dockerfile: pinned bases, packages with hashes, health checks, and the build context."""

import json
import re
import shlex
import subprocess

import pytest

from osrerank_workers.probes import Status, serve_probes
from tests.docker_files import DOCKERFILE, inherited, program, stages
from tests.servers import ROOT, free_port

IMAGES = ("cpu", "gpu", "server")


@pytest.mark.long
def test_hadolint_finds_no_fault_in_the_dockerfile():
    linted = subprocess.run([program("hadolint"), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_cpu_is_the_default_image_and_bases_are_pinned_by_version_and_digest():
    assert list(stages())[-1] == "cpu"
    bases = {stage.base for stage in stages().values()} - set(stages()) - {"scratch"}
    assert bases
    assert all(re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base) for base in bases)


@pytest.mark.parametrize("name", IMAGES)
def test_images_install_nothing_as_the_user_that_they_run_as(name):
    image, runtime = stages()[name], stages()["runtime"]
    assert image.base == "runtime"
    assert {keyword for keyword, _argument in image.instructions} <= {"COPY", "ENV", "EXPOSE", "HEALTHCHECK", "CMD"}
    user, _, group = (runtime.last("USER") or "").partition(":")
    assert int(user) >= 10_000
    assert int(group) >= 10_000


def test_the_servers_health_check_asks_for_readiness():
    server = stages()["server"]
    assert json.loads(server.last("CMD") or "") == ["osrerank", "serve", "--host", "0.0.0.0", "--port", "8088"]
    *_bash, code = json.loads((server.last("HEALTHCHECK") or "").partition(" CMD ")[2])
    assert f"/127.0.0.1/{server.last('EXPOSE')} " in code


@pytest.mark.long
@pytest.mark.parametrize(("name", "port"), [("server", "8088"), ("cpu", "8090")])
def test_the_health_check_passes_only_if_readiness_answers_200(name, port):
    command = json.loads((inherited(name, "HEALTHCHECK") or "").partition(" CMD ")[2])

    def checked(status: Status | None) -> int:
        own = free_port()
        stop = serve_probes(own, lambda: status) if status else lambda: None
        done = subprocess.run([word.replace(port, str(own)) for word in command], capture_output=True, check=False)
        stop()
        return done.returncode

    states = [Status(live=True, ready=True, reason="", held=0), Status(live=True, ready=False, reason="loads", held=0)]
    assert [bool(checked(status)) for status in (*states, None)] == [False, True, True]


def test_images_install_only_with_pip_and_hashes():
    for stage in stages().values():
        for keyword, argument in stage.instructions:
            assert keyword != "ADD"
            if keyword == "RUN":
                assert not re.search(r"\b(apt|apt-get|curl|wget|git)\b", argument)
                if re.search(r"pip (install|wheel)", argument):
                    assert "--require-hashes" in argument or "--no-index" in argument


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_each_image_installs_the_packages_of_its_requirements(name):
    instructions = stages()[f"{name}-packages"].instructions
    assert ("COPY", f"docker/requirements/{name}.txt ./") in instructions
    assert any("pip check" in argument for keyword, argument in instructions if keyword == "RUN")
    assert stages()[name].last("COPY") == f"--from={name}-packages /opt/osrerank /opt/osrerank"


def test_the_docker_context_holds_only_copied_files():
    copied = set()
    for stage in stages().values():
        for keyword, argument in stage.instructions:
            if keyword == "COPY" and not argument.startswith("--from="):
                copied |= set(shlex.split(argument)[:-1])
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
