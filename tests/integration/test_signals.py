"""The first signal ends a server and a worker, as a container's first process too, whatever they do at the moment."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests import servers
from tests.serving import serving
from tests.waiting import wait_until
from tests.workers import PATHS, TINY, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]
AWAY = "redis://127.0.0.1:1/0"
WORKER = ("worker", "--model", TINY, "--broker-url", AWAY, "--threads", "1")
ENDS_S = 15.0


def unshare():
    """Return the command that makes another one the first process of a namespace; skip where that is not allowed."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    is_there = shutil.which("unshare") is not None
    if not is_there or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare and the right to make a PID namespace: run as root")
    return command


@contextlib.contextmanager
def first_process(folder: Path, *arguments: str):
    """Yield a file with what osrerank says as process 1, and a function that signals it and returns its exit code."""
    log = folder / "log"
    environment = {**os.environ, "PYTHONPATH": PATHS}
    with log.open("wb") as file:
        command = [*unshare(), sys.executable, "-m", "osrerank", *arguments]
        outside = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=servers.ROOT)

    def end(number: int) -> int:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
        wait_until(lambda: children.read_text().split())
        os.kill(int(children.read_text().split()[0]), number)
        return outside.wait(ENDS_S)

    try:
        yield log, end
    finally:
        outside.kill()
        outside.wait()


def test_a_worker_that_waits_for_its_broker_ends_as_first_process(tmp_path):
    with first_process(tmp_path, *WORKER) as (log, end):
        wait_until(lambda: "[broker-away]" in log.read_text(), 60, log.read_text)
        assert end(signal.SIGTERM) == 0


@pytest.mark.parametrize("command", [WORKER, ("--model", TINY, "serve", "--port", "1")])
def test_a_server_and_a_worker_end_while_starting_as_first_process(tmp_path, command):
    with first_process(tmp_path, *command) as (_log, end):
        time.sleep(1.5)  # Python is up, and osrerank is loading
        assert end(signal.SIGTERM) in (0, 2, 143)  # 2: it is that far that port 1 is refused or taken


@contextlib.contextmanager
def hang_up(action):
    """Let the children of this process begin with this action for SIGHUP."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_worker_that_is_ready_exits_with_0(tmp_path, redis_url, number):
    options = ("--threads", "1", "--log-format", "json")
    with hang_up(signal.SIG_DFL), worker_group(redis_url, tmp_path, options=options) as group:
        (process,) = group.processes
        process.send_signal(number)
        assert process.wait(ENDS_S) == 0
        group.processes.clear()
        lines = [line for line in group.log().splitlines() if line]
        assert "stops: all chunks" in json.loads(lines[-1])["message"]
        assert number == signal.SIGINT or all(line.startswith("{") for line in lines)


def test_a_worker_under_nohup_works_on_when_its_terminal_hangs_up_and_shows_its_threads(tmp_path, redis_url):
    with hang_up(signal.SIG_IGN), worker_group(redis_url, tmp_path, options=("--threads", "1")) as group:
        (process,) = group.processes
        for number in (signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
        wait_until(lambda: "Current thread" in group.log())
        assert "LOCAL VARIABLES" not in group.log()
        assert process.poll() is None
        assert len(group.ready()) == 1


def test_a_server_answers_accepted_requests_when_its_terminal_hangs_up(tmp_path):
    serve = serving(tmp_path / "log", "--model", TINY, "--backend", "onnx")
    with hang_up(signal.SIG_DFL), serve as (process, _port):
        process.send_signal(signal.SIGHUP)
        assert process.wait(ENDS_S) == 0


def test_a_server_under_nohup_ignores_the_hangup_of_its_terminal(tmp_path):
    serve = serving(tmp_path / "log", "--model", TINY, "--backend", "onnx")
    with hang_up(signal.SIG_IGN), serve as (process, port):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            assert answer.status == 200


def test_a_build_that_follows_an_index_exits_with_0(tmp_path):
    environment = {**os.environ, "PYTHONPATH": PATHS, "OSRERANK_URL": f"embedded:{tmp_path / 'index'}"}
    environment["OSRERANK_VECTORS_FOLDER"] = str(tmp_path / "vectors")
    (tmp_path / "one.jsonl").write_text('{"id": "1", "text": "low blood pressure"}\n')
    osrerank = [sys.executable, "-m", "osrerank"]
    load = [*osrerank, "index", "jsonl", str(tmp_path / "one.jsonl"), "--index", "notes"]
    subprocess.run(load, env=environment, check=True, stdout=subprocess.DEVNULL)
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = [*osrerank, "vectors", "build", "--index", "notes", "--follow"]
        process = subprocess.Popen(command, stderr=file, env=environment)
    try:
        wait_until(lambda: "notes: 1 documents" in log.read_text(), 60, log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_S) == 0
    finally:
        process.kill()
        process.wait()
