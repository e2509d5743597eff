"""A run: searches are dealt to clients in order, events happen at their numbers, every outcome is judged and kept."""

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import servers
from tests.chaos.oracle import DEPTH, Expected, Tally, expect, fill, judge
from tests.chaos.schedule import Event, schedule
from tests.chaos.world import INDEX, LINKS, World
from tests.workers import TINY

AHEAD = 48
"""How far a fast client's searches may be ahead of the slowest one's."""
LOST_S = 60.0
"""A search that nothing is heard of for this long is lost."""
REJOIN_S = 120.0
"""A node that has been back for this long and has not joined is started again."""
REST_S = 0.2
"""After a search that failed, which is soon done: a time without OpenSearch would use up thousands of them."""
DEADLINES_MS = (1000.0, 2000.0, 2000.0, 6000.0)
CLIENTS = (
    ("workers", False, 5),
    ("workers", True, 4),
    ("http", False, 4),
    ("http", True, 3),
    ("in-process", False, 2),
    ("in-process", True, 1),
)
"""Backend, asynchronous or not, and how many searches at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Attributes:
        seed: of the searches and the schedule.
        searches: how many.
        workers: how many.
    """

    seed: int
    searches: int
    workers: int = 4


class Searcher:
    """A client process, started again when it dies."""

    def __init__(self, name: str, config: Mapping[str, Any], world: World, answers: "queue.Queue[Any]") -> None:
        self.name, self.config, self.world, self.answers = name, config, world, answers
        self.waiting: dict[int, float] = {}
        self.rests_until = 0.0
        self.ready = threading.Event()
        self.start()

    def start(self) -> None:
        """Start the process and a thread that reads from it."""
        command = [sys.executable, "-m", "tests.chaos.searcher", json.dumps(self.config)]
        environment = {**self.world.environment(), **self.config.get("environment", {})}
        with (self.world.folder / f"client-{self.name.replace(' ', '-')}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=-1, stdout=-1, stderr=log, env=environment, cwd=servers.ROOT, text=True
            )
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def await_ready(self) -> None:
        """Return when the process has loaded what it needs.

        Raises:
            TimeoutError: it ends, or takes longer than two minutes.
        """
        give_up = time.monotonic() + 120
        while not self.ready.wait(0.2):
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise TimeoutError(f"the client {self.name} did not start: see its log in {self.world.folder}")

    def send(self, job: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.waiting[job["number"]] = time.monotonic()
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """End the process, and its thread."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.thread.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            record = json.loads(line)
            if record:
                self.answers.put((self, record))
            else:
                self.ready.set()


@dataclass
class Run:
    """The state of a run."""

    plan: Plan
    log: Path
    expected: Mapping[str, Expected]
    events: list[Event]
    tally: Tally = field(default_factory=Tally)
    done: set[int] = field(default_factory=set)
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    failed_without_fault: list[int] = field(default_factory=list)
    faulty_until: float = 0.0
    held_since: float | None = None
    started_again: int = 0

    def job(self, number: int) -> dict[str, Any]:
        """Return a search, the same for the same seed and number."""
        rng = random.Random(self.plan.seed * 1_000_003 + number)
        query = rng.choice(sorted(self.expected))
        deadline_ms = rng.choice(DEADLINES_MS)
        rerank = {"depth": DEPTH, "fields": ["text"], "blend": "replace", "deadline_ms": deadline_ms}
        return {"number": number, "query": query, "index": INDEX, "size": DEPTH, "rerank": rerank}

    def take(self, searcher: Searcher, record: Mapping[str, Any]) -> None:
        """Judge a record and keep the verdict."""
        number = record["number"]
        if number in self.done or searcher.waiting.pop(number, None) is None:
            self.doubled.append(number)
            return
        job = self.job(number)
        searcher.rests_until = time.monotonic() + REST_S if "error" in record else 0.0
        verdict = judge(record, job["rerank"]["deadline_ms"], self.expected[job["query"]])
        line = {
            "number": number, "client": searcher.name, "outcome": verdict.outcome, "why": verdict.why,
            "wrong": list(verdict.wrong), "ms": round(record["ms"], 1), "over_ms": round(verdict.over_ms, 1),
            "first_pass_ms": round(record["first_pass_ms"], 1), "deadline_ms": job["rerank"]["deadline_ms"],
            "excused": time.monotonic() < self.faulty_until, "error": record.get("error"),
        }  # fmt: skip
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self._count(line)

    def lose(self, searcher: Searcher, number: int) -> None:
        """Note a search that nothing is heard of."""
        searcher.waiting.pop(number)
        self.lost.append(number)
        self.done.add(number)

    def _count(self, line: Mapping[str, Any]) -> None:
        self.done.add(line["number"])
        self.tally.add(line)
        if line["outcome"] == "failed" and not line["excused"]:
            self.failed_without_fault.append(line["number"])

    def note(self, event: Event) -> None:
        """Remember until when OpenSearch may fail by what is done to it and to the way there."""
        if event.target in ("node", "node-0", "node-1", "os-0", "os-1"):
            rest_s = 1e6 if event.act in ("toxic", "kill") else 20.0 if event.target.startswith("os-") else 90.0
            self.faulty_until = time.monotonic() + rest_s

    def perform_due(self, world: World, events: list[Event], lowest: int) -> None:
        """Do the events whose searches have all ended; a node is killed only when the other one can do without it."""
        while events and events[0].at <= lowest:
            event = events[0]
            if event.target == "node" and not world.may_end(event):
                self._hold(world, event)
                return
            self.held_since = None
            self.note(event)
            world.perform(events.pop(0))

    def _hold(self, world: World, event: Event) -> None:
        """Wait for the other node; one that does not join, for whatever reason, is started again."""
        now = time.monotonic()
        self.held_since = self.held_since or now
        if now - self.held_since > REJOIN_S:
            for act in ("kill", "start"):
                again = Event(event.at, act, "node", 1 - event.number)
                print("again:", again, flush=True)  # noqa: T201 - it is not in the schedule
                self.note(again)
                world.perform(again)
            self.started_again += 1
            self.held_since = now

    def summary(self, seconds: float) -> dict[str, Any]:
        return {
            "seed": self.plan.seed,
            "workers": self.plan.workers,
            **self.tally.summary(),
            "lost": len(self.lost),
            "doubled": len(self.doubled),
            "failed_without_a_fault_of_opensearch": len(self.failed_without_fault),
            "events": len(self.events),
            "nodes_started_again": self.started_again,
            "seconds": round(seconds, 1),
            "searches_per_s": round(len(self.tally.took) / seconds, 1),
            "load": round(os.getloadavg()[0], 1),
        }


@contextlib.contextmanager
def searchers(world: World, answers: "queue.Queue[Any]") -> Iterator[list[Searcher]]:
    """Yield client processes that have loaded what they need."""
    made: list[Searcher] = []
    try:
        for number, (backend, is_async, slots) in enumerate(CLIENTS):
            options: dict[str, Any] = {"timeout": 2.0, "max_retries": 1, "retry_on_timeout": True, "model": TINY}
            options |= {"backend": "onnx" if backend == "in-process" else backend}
            options |= {"redis_url": world.redis_url("client-redis")}
            config = {"url": world.search_url, "options": options, "is_async": is_async, "slots": slots, "index": INDEX}
            if number % 3:  # most clients keep no scores
                config["environment"] = {"OSRERANK_CACHE_MB": "0", "OSRERANK_CACHE_LOCAL_MB": "0"}
            made.append(Searcher(f"{backend} {'async' if is_async else 'sync'}", config, world, answers))
        for process in made:
            process.await_ready()
        yield made
    finally:
        for process in made:
            process.close()


def perform(plan: Plan, folder: Path, *, log: Path) -> dict[str, Any]:
    """Run a plan; print the schedule, write each outcome to the log, and return the summary."""
    with World(folder, workers=plan.workers) as world:
        fill(world.direct_url)
        events = schedule(plan.seed, plan.searches, LINKS, workers=plan.workers)
        run = Run(plan, log, expect(world.direct_url), events)
        for event in events:
            print(event)  # noqa: T201 - the schedule of the run
        answers: queue.Queue[Any] = queue.Queue()
        with searchers(world, answers) as clients:
            started = time.monotonic()
            search(run, world, clients, answers)
            seconds = time.monotonic() - started
            world.heal()
    return run.summary(seconds)


def search(run: Run, world: World, clients: Sequence[Searcher], answers: "queue.Queue[Any]") -> None:
    """Deal all searches, and judge what comes back."""
    turns = [index for index, (_, _, slots) in enumerate(CLIENTS) for _ in range(slots)]
    slots = [count for _, _, count in CLIENTS]
    random.Random(run.plan.seed).shuffle(turns)
    left = {index: [] for index in range(len(clients))}  # type: dict[int, list[int]]
    for number in reversed(range(run.plan.searches)):
        left[turns[number % len(turns)]].append(number)
    events = list(run.events)
    while any(left.values()) or any(client.waiting for client in clients):
        lowest = min((min([*one.waiting, *left[index][-1:]], default=1 << 60) for index, one in enumerate(clients)))
        next_event_at = (
            events[0].at + AHEAD if events else 1 << 60
        )  # searches wait for an event that cannot be done yet
        for place, one in enumerate(clients):
            while (
                left[place] and len(one.waiting) < slots[place] and left[place][-1] < min(lowest + AHEAD, next_event_at)
            ):
                if time.monotonic() < one.rests_until:
                    break
                one.send(run.job(left[place].pop()))
        run.perform_due(world, events, lowest)
        _listen(run, clients, answers)


def _listen(run: Run, clients: Sequence[Searcher], answers: "queue.Queue[Any]") -> None:
    """Take one answer; give up what nothing is heard of."""
    with contextlib.suppress(queue.Empty):
        run.take(*answers.get(timeout=0.25))
    for client in clients:
        late = [number for number, sent_at in client.waiting.items() if time.monotonic() - sent_at > LOST_S]
        if late or client.process.poll() is not None:
            for number in list(client.waiting):
                run.lose(client, number)
            client.process.kill()
            client.close()
            client.start()
