"""The table of a worker's states in docs/workers.md: a worker is driven into each, and asked as an operator asks."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from osrerank.errors import WorkerError
from osrerank.scoring.remote.load import load
from osrerank.settings import Settings
from osrerank_workers import check as of_check
from osrerank_workers.check import check_worker
from tests import servers
from tests.waiting import wait_until
from tests.workers import PATHS

pytestmark = [pytest.mark.integration, pytest.mark.long]
MODEL = "a-model-of-states"
STALE_S = 4
"""In place of a minute."""
STAND_IN = f"""
import sys, time
from osrerank._signals import end_on_signals
from osrerank.errors import InferenceError
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank_workers import service
from osrerank_workers.run import run_worker

service.CHECK_EVERY_S, service.HANGS_AFTER_S = 0.2, {STALE_S}.0
state, broker, port = sys.argv[1:]
calls = 0

def score(_query, text):
    global calls
    calls += 1
    if state == "loads its model" or (state == "hangs" and calls > 4):
        time.sleep(60)
    if state == "has a model that fails" and calls > 4:
        raise InferenceError("broken on purpose")
    time.sleep(4 if text == "slow" else 0)
    return 1.0

scorer = None if state == "cannot load its model" else FunctionScorer(score)
with end_on_signals():
    sys.exit(run_worker(Settings.load(broker_url=broker, model="{MODEL}", probe_port=int(port)), scorer))
"""


def rows() -> dict[str, list[str]]:
    """Return the table's rows by the state."""
    page = (servers.ROOT / "docs" / "workers.md").read_text("utf-8")
    table = page.split("| the worker |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {state: other_cells for state, *other_cells in cells}


@dataclass
class Driven:
    """A worker, its broker, and what they say."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int
    broker: str
    redis: subprocess.Popen[bytes]

    def asked(self, path: str) -> str:
        """Return a probe's answer as the table has it; empty if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                reason = json.load(error).get("reason", "").replace(f"for {STALE_S} s", "for 60 s")
                return f"{error.code}: {reason}" if reason else str(error.code)
        except OSError:
            return ""

    def checked(self) -> int:
        try:
            check_worker(Settings.load(broker_url=self.broker, model=MODEL))
        except WorkerError:
            return 1
        return 0

    def codes(self) -> set[str]:
        return set(re.findall(r"\[([a-z-]+)\]", self.log.read_text())) - {"unsigned"}


@contextlib.contextmanager
def driven(state: str, folder: Path) -> Iterator[Driven]:
    """Yield a worker that is about to come into a state."""
    port = servers.free_port()
    with servers.start_redis(servers.redis_binary(), folder) as (broker, redis):
        if state == "waits for Redis":
            redis.kill()
            redis.wait()
        log = folder / "worker.log"
        command = [sys.executable, "-c", STAND_IN, state, broker, str(port)]
        with log.open("wb") as file:
            environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONWARNINGS": "ignore"}
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=servers.ROOT)
        try:
            yield Driven(process, log, port, broker, redis)
        finally:
            process.kill()
            process.wait()


def lose_redis(worker: Driven) -> None:
    worker.redis.kill()
    worker.redis.wait()


def demote(worker: Driven) -> None:
    Redis.from_url(worker.broker).execute_command("REPLICAOF", "127.0.0.1", "1")


def stop_with_a_chunk(worker: Driven) -> None:
    scorer = load(Settings.load(broker_url=worker.broker, model=MODEL), MODEL)
    threading.Thread(target=lambda: scorer.score("q", ["slow"], [(0,)]), daemon=True).start()
    ready = f"http://127.0.0.1:{worker.port}/ready"
    wait_until(lambda: json.load(urllib.request.urlopen(ready, timeout=5))["held"])
    worker.process.send_signal(signal.SIGTERM)


DRIVE: dict[str, Callable[[Driven], None]] = {
    "has lost Redis": lose_redis,
    "is left with a replica": demote,
    "finishes its chunks": stop_with_a_chunk,
}


@pytest.mark.parametrize("state", [state for state in rows() if state != "has a wrong setting"])
def test_a_worker_in_a_state_answers_ends_and_logs_as_the_table_says(state, tmp_path, monkeypatch):
    monkeypatch.setattr(of_check, "HANGS_AFTER_S", STALE_S)
    live, ready, check, exit_code, codes = rows()[state]
    logged = set(re.findall(r"`([a-z-]+)`", codes))
    with driven(state, tmp_path) as worker:
        if state in DRIVE:
            wait_until(lambda: worker.asked("/ready") == "200", 60, worker.log.read_text)
            DRIVE[state](worker)
        if live:
            wait_until(lambda: worker.asked("/ready") == ready, 60, lambda: worker.asked("/ready"))
            assert worker.asked("/live") == live
            wait_until(lambda: worker.checked() == int(check), 10)
            wait_until(lambda: worker.codes() == logged, 10, worker.log.read_text)
            if "SIGTERM" in exit_code:
                worker.process.send_signal(signal.SIGTERM)
        if exit_code:
            assert worker.process.wait(60) == int(exit_code.split()[0])
        assert worker.checked() == int(check) or "SIGTERM" in exit_code
        assert worker.codes() == logged


def test_a_wrong_setting_is_told_in_a_sentence_and_by_the_exit_code(tmp_path):
    command = [sys.executable, "-m", "osrerank", "worker", "--broker-url", "redis://127.0.0.1:1?x=1", "--model", MODEL]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert rows()["has a wrong setting"] == ["", "", "2", str(done.returncode), ""]
    assert done.stderr.startswith("Error: broker_url (OSRERANK_BROKER_URL")
    assert done.stderr.count("\n") == 1
