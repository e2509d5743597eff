"""``python -m tests.chaos.failovers --minutes 60``: one search a second while what an operator dreads happens on time.

Two workers of a mono model and two of a duo model, a rerank server on workers, and a client process share a Redis that
Sentinel moves between two servers, behind one address. Every minute the master changes: told to, killed or stopped.
Workers are killed and stopped, too, and OpenSearch restarts every five minutes. Whatever is killed is started again;
whatever ends by itself is a fault.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from redis import Redis, RedisError

from osrerank import Client, connect
from tests import servers
from tests.chaos.oracle import DEPTH, WORDS, fill
from tests.chaos.world import INDEX
from tests.toxics import Proxies, Toxic
from tests.workers import PATHS, TINY

DUO = str(servers.ROOT / "tests" / "data" / "tiny-bert-duo")
KEY = "the-key-of-both-sides-in-failovers"
DEADLINE_MS = 3000.0
LATE_MS = 500.0
"""Beyond its deadline; more is late. The machine is shared."""
QUERIES = 40
RERANK: dict[str, Any] = {"pipeline": "mono-duo", "depth": DEPTH, "duo_depth": 4, "fields": ["text"]}
RERANK |= {"blend": "replace"}
RESTART_S = 90.0
"""How long after a restart of OpenSearch began its errors are excused."""


class Place:
    """A process that is started again when it was killed; when it ends by itself, that is noted.

    Args:
        name: of the process and its log.
        start: starts it.
        faults: gets a line when it ends by itself.
    """

    def __init__(self, name: str, start: Callable[[], "subprocess.Popen[bytes]"], faults: list[str]) -> None:
        self.name, self._start, self._faults = name, start, faults
        self.process = start()
        self.killed = 0

    def kill(self, away_s: float, *, by: int = signal.SIGKILL) -> None:
        """End the process, and start it again after a while."""
        self.look()
        self.process.send_signal(by)
        self.process.wait(120)
        self.killed += 1
        time.sleep(away_s)
        self.process = self._start()

    def stop_for(self, seconds: float) -> None:
        """Let the process hang for a while."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def look(self) -> None:
        """Note it, and start the process again, if it has ended by itself."""
        if (code := self.process.poll()) is not None:
            self._faults.append(f"{self.name} ended with {code}")
            self.process = self._start()

    def rss_mb(self) -> float:
        """Return the memory that it has, in MB."""
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
        return 0.0

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self._faults.append(f"{self.name} did not end within 40 s of SIGTERM")
            self.process.kill()
            self.process.wait()


class Redises:
    """Two Redis servers and a Sentinel, and a link that leads to the master.

    Args:
        folder: for their files.
        proxies: carry the link.
        faults: of processes that end by themselves.
    """

    def __init__(self, folder: Path, proxies: Proxies, faults: list[str]) -> None:
        self.folder = folder
        self.ports = [servers.free_port(), servers.free_port()]
        self.sentinel_port = servers.free_port()
        self.places = [Place(f"redis {index}", self._starter(index), faults) for index in range(2)]
        time.sleep(1)
        Redis(port=self.ports[1]).execute_command("REPLICAOF", "127.0.0.1", str(self.ports[0]))
        self.sentinel = Place("sentinel", self._start_sentinel, faults)
        self.proxies = proxies
        self.port = proxies.open("redis", self.ports[0])
        self.changes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def master(self) -> int:
        """Which of the two the link leads to."""
        return self.ports.index(self.proxies.links["redis"].target)

    def fail_over(self) -> None:
        """Let Sentinel make the other server the master."""
        with contextlib.suppress(RedisError):  # it has no replica at the moment
            Redis(port=self.sentinel_port, socket_timeout=5).execute_command("SENTINEL", "FAILOVER", "main")

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        for one in [self.sentinel, *self.places]:
            one.end()

    def _follow(self) -> None:
        """Lead the link to the master that Sentinel names; connections to the one before are reset."""
        while not self._ended.wait(0.25):
            with contextlib.suppress(RedisError, TypeError):
                sentinel = Redis(port=self.sentinel_port, socket_timeout=1)
                port = int(sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1])
                sentinel.close()
                link = self.proxies.links["redis"]
                if port != link.target:
                    link.target = port
                    self.proxies.infect("redis", Toxic("reset"))
                    self.proxies.infect("redis", None)
                    self.changes += 1

    def _starter(self, at: int) -> Callable[[], "subprocess.Popen[bytes]"]:
        def start() -> "subprocess.Popen[bytes]":
            folder = self.folder / f"redis-{at}"
            folder.mkdir(parents=True, exist_ok=True)
            command = [servers.redis_binary(), "--port", str(self.ports[at]), "--bind", "127.0.0.1", "--save", ""]
            with (folder / "log").open("ab") as log:
                return subprocess.Popen([*command, "--dir", str(folder)], stdout=log, stderr=log)

        return start

    def _start_sentinel(self) -> "subprocess.Popen[bytes]":
        folder = self.folder / "sentinel"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"port {self.sentinel_port}", "bind 127.0.0.1", f"dir {folder}"]
        lines += [f"sentinel monitor main 127.0.0.1 {self.ports[0]} 1", "sentinel down-after-milliseconds main 3000"]
        lines += ["sentinel failover-timeout main 15000"]
        (folder / "sentinel.conf").write_text("\n".join(lines))
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                [servers.redis_binary(), str(folder / "sentinel.conf"), "--sentinel"], stdout=log, stderr=log
            )


class World:
    """All processes of a run; used as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults = folder, list[str]()
        self.stack = ExitStack()
        self.opensearch_port, self.server_port = servers.free_port(), servers.free_port()
        self.restarted_at = -RESTART_S
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.proxies = self.stack.enter_context(Proxies())
        self.opensearch = self._place("opensearch", self._start_opensearch)
        self.await_http(f"{self.opensearch_url}/_cluster/health?wait_for_status=yellow&timeout=1s")
        self.redises = Redises(self.folder, self.proxies, self.faults)
        self.stack.callback(self.redises.close)
        models = {"mono 0": TINY, "mono 1": TINY, "duo 0": DUO, "duo 1": DUO}
        self.workers = [
            self._place(name, self._starter(name, ["worker", "--model", model, "--broker-url", self.redis_url]))
            for name, model in models.items()
        ]
        serve = ["--backend", "workers", "--redis-url", self.redis_url, "--model", TINY, "serve", "--port"]
        self.server = self._place("server", self._starter("server", [*serve, str(self.server_port)]))
        self.await_http(f"http://127.0.0.1:{self.server_port}/ready")
        return self

    def __exit__(self, *_error: object) -> None:
        self.stack.close()

    @property
    def opensearch_url(self) -> str:
        return f"http://127.0.0.1:{self.opensearch_port}"

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redises.port}/0"

    @property
    def places(self) -> list[Place]:
        return [self.opensearch, self.redises.sentinel, *self.redises.places, *self.workers, self.server]

    def await_http(self, url: str) -> None:
        give_up = time.monotonic() + servers.START_TIMEOUT_S
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.5)
        raise TimeoutError(url)

    def master_changes(self, number: int) -> None:
        """Let the master change in one of three ways."""
        before = self.redises.places[self.redises.master]
        kind = ("failover", "kill", "stop")[number % 3]
        self.done[f"redis: {kind}"] += 1
        if kind == "failover":
            self.redises.fail_over()
        elif kind == "kill":
            before.kill(20)
        else:
            before.stop_for(15)

    def worker_fails(self, number: int, rng: random.Random) -> None:
        """Kill a worker, or let it hang."""
        worker = rng.choice(self.workers)
        kind = "stop" if number % 2 else "kill"
        self.done[f"worker: {kind}"] += 1
        if kind == "kill":
            worker.kill(5)
        else:
            worker.stop_for(rng.choice((2, 10, 30)))

    def opensearch_restarts(self) -> None:
        self.done["opensearch: restart"] += 1
        self.restarted_at = time.monotonic()
        self.opensearch.kill(1, by=signal.SIGTERM)

    def _place(self, name: str, start: Callable[[], "subprocess.Popen[bytes]"]) -> Place:
        place = Place(name, start, self.faults)
        self.stack.callback(place.end)
        return place

    def _start_opensearch(self) -> "subprocess.Popen[bytes]":
        home = servers.opensearch_home()
        assert home is not None
        settings = {"discovery.type": "single-node"}
        folder = self.folder / "opensearch"
        return servers.launch_opensearch(home, folder, port=self.opensearch_port, settings=settings, heap="512m")

    def _starter(self, name: str, arguments: list[str]) -> Callable[[], "subprocess.Popen[bytes]"]:
        ours = {"OSRERANK_SIGNING_KEY": KEY, "OSRERANK_THREADS": "1", "PYTHONPATH": PATHS, "PYTHONWARNINGS": "ignore"}

        def start() -> "subprocess.Popen[bytes]":
            with (self.folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
                command = [sys.executable, "-m", "osrerank", *arguments]
                return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **ours}, cwd=servers.ROOT)

        return start


class Searches:
    """Searches, one a second, and what came of them.

    Args:
        world: is searched.
        log: gets a line for each search and request.
    """

    def __init__(self, world: World, log: Path) -> None:
        self.world, self._log = world, log
        self.counts: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.took_ms: list[float] = []
        self.late = self.sent = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(16)
        common = {"model": TINY, "duo_model": DUO, "timeout": 2.0, "max_retries": 0}
        os.environ.update(OSRERANK_SIGNING_KEY=KEY, OSRERANK_CACHE_MB="0", OSRERANK_CACHE_LOCAL_MB="0")
        fill(world.opensearch_url, copies=0)
        with connect(world.opensearch_url, **{**common, "timeout": 60}) as alone:
            self.expected = dict(itertools.islice(self._orders(alone), QUERIES))
        self.client = connect(world.opensearch_url, backend="workers", redis_url=world.redis_url, **common)

    def send(self, number: int) -> None:
        """Search in a thread; every fifth time the server is asked, too."""
        self.sent += 1
        self._threads.submit(self._search, number)
        if number % 5 == 0:
            self._threads.submit(self._request, number)

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self.client.close()

    def summary(self, seconds: float) -> dict[str, Any]:
        took = sorted(self.took_ms) or [0.0]
        return {
            "minutes": round(seconds / 60, 1),
            "searches_sent": self.sent,
            "searches_answered_or_failed": sum(self.counts.values()),
            "by_outcome": dict(self.counts.most_common()),
            "wrong": self.wrong[:20],
            "late": self.late,
            "ms": {"median": took[len(took) // 2], "95%": took[int(len(took) * 0.95)], "most": took[-1]},
            "server": dict(self.requests.most_common()),
            "done": dict(self.world.done),
            "master_changes": self.world.redises.changes,
            "killed": {place.name: place.killed for place in self.world.places if place.killed},
            "ended_by_themselves": self.world.faults,
            "load": round(os.getloadavg()[0], 1),
        }

    @staticmethod
    def _orders(alone: Client) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield queries whose orders do not hang on the last digit of a float: the first pass' and the pipeline's."""
        rng = random.Random(3)
        while True:
            query = " ".join(rng.sample(WORDS, 3))
            orders, logits = [], list[float]()
            for options in ({"pipeline": "none"}, RERANK):
                response = alone.search(query, index=INDEX, size=DEPTH, rerank={**options, "deadline_ms": None})
                orders.append([hit["_id"] for hit in response["hits"]["hits"]])
            logits = sorted(hit["_rerank"]["mono"]["logit"] for hit in response["hits"]["hits"])
            if len(logits) == DEPTH and all(b - a > 1e-4 for a, b in itertools.pairwise(logits)):
                yield query, orders

    def _search(self, number: int) -> None:
        query = list(self.expected)[number % len(self.expected)]
        began = time.monotonic()
        rerank = {**RERANK, "deadline_ms": DEADLINE_MS}
        try:
            response = self.client.search(query, index=INDEX, size=DEPTH, rerank=rerank)
        except Exception as error:  # noqa: BLE001 - counted by its class
            excused = type(error).__module__.startswith("opensearchpy") and began - self.world.restarted_at < RESTART_S
            self._count("failed", type(error).__name__, began, f"failed unexcused: {error}"[:200] * (not excused))
            return
        ids, marks = [hit["_id"] for hit in response["hits"]["hits"]], response["rerank"]
        first_pass, reranked = self.expected[query]
        wrong = ""
        if sorted(ids) != sorted(first_pass):
            wrong = "other hits"
        elif marks["applied"] is True and ids != reranked:
            wrong = f"another order: {ids}, not {reranked}"
        elif marks["applied"] is False and (ids != first_pass or not marks["reason_code"]):
            wrong = f"no first pass, or no reason: {marks}"
        outcome = {True: "reranked", False: "first pass", "partial": "partial"}[marks["applied"]]
        self._count(outcome, marks.get("reason_code") or "", began, wrong, reason=marks.get("reason"))

    def _request(self, number: int) -> None:
        documents = [f"{' '.join(WORDS[:10])} {number} {index}" for index in range(10)]
        body = json.dumps({"query": "salt", "documents": documents, "timeout_ms": 3000}).encode()
        url = f"http://127.0.0.1:{self.world.server_port}/v1/rerank"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                outcome = str(answer.status)
        except urllib.error.HTTPError as error:
            outcome = str(error.code)
        except OSError as error:
            outcome = type(error).__name__
            self.wrong.append(f"the server did not answer: {error}")
        self.requests[outcome] += 1

    def _count(self, outcome: str, why: str, began: float, wrong: str, **more: Any) -> None:
        took_ms = round(1000 * (time.monotonic() - began), 1)
        name = f"{outcome}: {why}" if why else outcome
        with self._lock:
            self.counts[name] += 1
            self.took_ms.append(took_ms)
            self.late += took_ms > DEADLINE_MS + LATE_MS
            if wrong:
                self.wrong.append(wrong)
            line = {"time": round(time.time(), 1), "outcome": name, "ms": took_ms, "wrong": wrong, **more}
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")


def perform(folder: Path, minutes: float, every_s: float) -> dict[str, Any]:
    """Run, write the summary to ``summary.json`` each minute, and return it."""
    with World(folder) as world:
        searches = Searches(world, folder / "searches.jsonl")
        threads = ThreadPoolExecutor(8)
        rng = random.Random(5)
        started = time.monotonic()
        rss = {place.name: place.rss_mb() for place in world.places}
        steps = int(minutes * 60)
        for second in range(steps):
            searches.send(second)
            if second >= 20 and steps - second > 45:  # all is well at the beginning and in the end
                minute = second / every_s
                if (second - 20) % every_s == 0:
                    threads.submit(world.master_changes, int(minute))
                if (second - 35) % (1.5 * every_s) == 0:
                    threads.submit(world.worker_fails, int(minute), rng)
                if (second - 50) % (5 * every_s) == 0:
                    threads.submit(world.opensearch_restarts)
            if second % 60 == 59:
                (folder / "summary.json").write_text(json.dumps(searches.summary(time.monotonic() - started), indent=1))
            time.sleep(max(0.0, started + second + 1 - time.monotonic()))
        threads.shutdown(wait=True)
        searches.close()
        for place in world.places:
            place.look()
        summary = searches.summary(time.monotonic() - started)
        summary["rss_mb"] = {one.name: [round(rss[one.name]), round(one.rss_mb())] for one in world.places}
    summary["ended_by_themselves"] = world.faults
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    return summary


def main() -> int:
    """Run, print the summary, and return 1 if something was wrong or ended by itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.failovers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=60, help="seconds between two failovers")
    parser.add_argument("--folder", type=Path, help="for the files of the servers and the log")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="failovers-") as temporary:
        summary = perform(arguments.folder or Path(temporary), arguments.minutes, arguments.every)
    print(json.dumps(summary, indent=1))  # noqa: T201
    return int(bool(summary["wrong"] or summary["ended_by_themselves"]))


if __name__ == "__main__":
    sys.exit(main())
