"""Worker processes for tests: real ones, of a tiny model, or of a stand-in that sleeps instead of computing.

``python -m tests.workers`` runs one whose scorer takes a fixed time for every pair, one pair at a time as one device
would: it shows what the transport costs, on a machine that has not the cores for as many models.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from osrerank.testing import FunctionScorer
from osrerank.types import NEVER, Scores
from tests.servers import ROOT
from tests.waiting import wait_until

TINY = str(ROOT / "tests" / "data" / "tiny-bert-one-label")
STAND_IN = "stand-in"
PATHS = os.pathsep.join(str(ROOT / folder) for folder in (".", "index_loaders", "workers"))
START_S = 60.0


class DeviceScorer(FunctionScorer):
    """A scorer that is busy for a time in proportion to the pairs, with one call at a time."""

    __slots__ = ("_device",)

    def __init__(self, seconds_per_pair: float) -> None:
        super().__init__(seconds_per_pair=0.0)
        object.__setattr__(self, "_device", (threading.Lock(), seconds_per_pair))

    @property
    def identity(self) -> str:
        return f"{STAND_IN}/length"

    def score(self, query, documents, tuples, *, deadline=NEVER):
        lock, seconds_per_pair = self._device
        with lock:
            time.sleep(seconds_per_pair * len(tuples))
        values = np.array([len(documents[indices[0]]) for indices in tuples], dtype=np.float32)
        return Scores(values, inferences=len(tuples))


class WorkerGroup:
    """Workers of one model, started and killed at will.

    Args:
        redis_url: the broker.
        folder: where their logs go.
        model: the name that they take.
        options: of each worker.
        module: what is run.
    """

    def __init__(
        self,
        redis_url: str,
        folder: Path,
        *,
        model: str = TINY,
        options: Sequence[str] = (),
        module: str = "osrerank_workers",
        environment: dict[str, str] | None = None,
        key: str = "",
    ) -> None:
        self.redis_url, self.folder, self.model = redis_url, folder, model
        self.options, self.module = options, module
        self.environment = {**(environment or {}), **({"OSRERANK_SIGNING_KEY": key} if key else {})}
        self.signer = Signer([part.encode() for part in key.split(",")] if key else [])
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int = 1, *, wait: bool = True) -> list[subprocess.Popen[bytes]]:
        """Start workers; return when clients can see them."""
        started = [self._start() for _ in range(count)]
        self.processes += started
        if wait:
            self._wait(
                lambda: all(any(f":{one.pid}:" in worker for worker in self.ready()) for one in started), START_S
            )
        return started

    def ready(self) -> list[str]:
        """Return the ids of the workers that take chunks."""
        redis = connect(self.redis_url)
        try:
            return [
                heartbeat.worker
                for heartbeat in WorkerRegistry(redis, self.model, self.signer).heartbeats()
                if heartbeat.taking
            ]
        finally:
            redis.close()

    def wait_for(self, count: int, *, seconds: float = START_S) -> None:
        """Return when so many workers take chunks, whoever started them."""
        self._wait(lambda: len(self.ready()) >= count, seconds)

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        def ended() -> list[int]:
            return [process.returncode for process in self.processes if process.poll() not in (None, 0, -9)]

        wait_until(lambda: ended() or done(), seconds, lambda: f"workers are missing: {self.log()[-2000:]}")
        assert not ended(), f"a worker ended with {ended()}: {self.log()[-2000:]}"

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.processes.remove(process)

    def stop(self, seconds: float = 30.0) -> list[int]:
        """Stop all workers; return their exit codes."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self.processes.clear()
        return codes

    def log(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("worker-*.log")))

    def _start(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob("worker-*.log")))
        command = [sys.executable, "-m", self.module, "--model", self.model, "--broker-url", self.redis_url]
        environment = {"PYTHONWARNINGS": "ignore", **os.environ, "PYTHONPATH": PATHS, **self.environment}
        with (self.folder / f"worker-{number:03}.log").open("wb") as log:
            return subprocess.Popen([*command, *self.options], stdout=log, stderr=log, env=environment, cwd=ROOT)


@contextlib.contextmanager
def worker_group(redis_url: str, folder: Path, count: int = 1, **options) -> Iterator[WorkerGroup]:
    """Yield workers, and stop them at the end."""
    group = WorkerGroup(redis_url, folder, **options)
    try:
        group.start(count)
        yield group
    finally:
        group.stop()


def main() -> None:
    """Run a stand-in worker."""
    from osrerank.settings import Settings
    from osrerank_workers.run import run_worker

    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--broker-url")
    parser.add_argument("--seconds-per-pair", type=float, default=0.0005)
    parser.add_argument("--tasks", type=int, default=2)
    arguments = parser.parse_args()
    settings = Settings.load(model=arguments.model, broker_url=arguments.broker_url, worker_tasks=arguments.tasks)
    sys.exit(run_worker(settings, DeviceScorer(arguments.seconds_per_pair)))


if __name__ == "__main__":
    main()
