"""The parts of a run in motion: what toxics do, that a schedule repeats itself, what the oracle finds."""

import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos import run as chaos_run
from tests.chaos.oracle import Expected, judge
from tests.chaos.run import Plan, Run, perform
from tests.chaos.schedule import AFTER, NODE_EVERY, Event, at_search, schedule
from tests.chaos.world import LINKS
from tests.toxics import Proxies, Toxic

ECHO = b"salt " * 400


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(4096):
                    connection.sendall(piece)
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()

    server = threading.Thread(target=serve)
    server.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    for thread in (server, *threads):
        thread.join(5)


def exchange(connection: socket.socket) -> bytes:
    """Send, and return what comes back until all is there or the other side is gone."""
    connection.sendall(ECHO)
    found = b""
    while len(found) < len(ECHO) and (piece := connection.recv(65_536)):
        found += piece
    return found


def test_toxics_do_what_they_say(echo: int) -> None:
    with Proxies() as proxies:
        address = ("127.0.0.1", proxies.open("echo", echo))
        with socket.create_connection(address, timeout=10) as connection:
            assert exchange(connection) == ECHO
            for toxic, least_s in (
                (Toxic("latency", 60), 0.12),
                (Toxic("bandwidth", 20), 0.2),
                (Toxic("jitter", 9), 0),
            ):
                proxies.infect("echo", toxic)
                started = time.monotonic()
                assert exchange(connection) == ECHO
                assert time.monotonic() - started >= least_s
            proxies.infect("echo", Toxic("reset"))
            with pytest.raises(ConnectionResetError):
                exchange(connection)
        proxies.infect("echo", Toxic("slow_reader"))
        with socket.create_connection(address, timeout=10) as connection:
            assert exchange(connection) == ECHO
            proxies.infect("echo", Toxic("swallow"))
            proxies.infect("echo", None)
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):  # half open for ever
                exchange(connection)
        with socket.create_connection(address, timeout=10) as connection:
            assert exchange(connection) == ECHO


def test_a_schedule_repeats_itself_and_ends_well() -> None:
    events = schedule(32, 10_000, LINKS, nodes=2, workers=4)
    assert events == schedule(32, 10_000, LINKS, nodes=2, workers=4)
    assert events != schedule(33, 10_000, LINKS, nodes=2, workers=4)
    begun = [event for event in events if event.act in AFTER]
    assert len(begun) * 2 == len(events)
    assert at_search(events, 10_000) == []
    assert {event.act for event in events} == {*AFTER, *AFTER.values()}
    ended = [event.at for event in events if event.act == "kill" and event.target == "node"]
    assert len(ended) > 5
    assert min(after - before for before, after in pairwise(ended)) > NODE_EVERY


def test_the_oracle_finds_what_is_wrong() -> None:
    expected = Expected(("1", "2", "3"), ("3", "1", "2"), {"1": 0.5, "2": 0.1, "3": 0.9})

    def wrong(ids: str, applied: object, reason: str | None = None, **logits: float) -> int:
        hits = [(key, logits.get(f"n{key}")) for key in ids]
        record = {"ms": 900.0, "first_pass_ms": 20.0, "hits": hits, "rerank": {"applied": applied, "reason": reason}}
        return len(judge(record, 1000.0, expected).wrong)

    assert wrong("312", applied=True, n1=0.5, n2=0.1, n3=0.9) == 0
    assert wrong("123", applied=False, reason="the deadline passed") == 0
    assert wrong("123", applied=False) == 1
    assert wrong("132", applied=True, n1=0.5) == 1
    assert wrong("124", applied=False, reason="r") == 2
    assert wrong("312", applied="partial", reason="r", n3=0.7) == 1
    late = {"ms": 1400.0, "first_pass_ms": 1200.0, "error": ["opensearchpy.exceptions.ConnectionError", ""]}
    assert judge({**late, "is_opensearch": True}, 1000.0, expected).over_ms == 200.0
    assert judge({**late, "is_opensearch": False}, 1000.0, expected).wrong


def test_a_node_that_does_not_join_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Standing:
        """A cluster whose other node joins only when it is started again."""

        def __init__(self) -> None:
            self.done: list[str] = []

        def may_end(self, event: Event) -> bool:
            return event.act != "kill" or "   700 start node 1" in self.done

        def perform(self, event: Event) -> None:
            self.done.append(str(event))

    world = Standing()
    run = Run(Plan(1, 1000), tmp_path / "log.jsonl", {}, [])
    events = [Event(700, "kill", "node", 0), Event(701, "kill", "worker", 2)]
    for lowest in (699, 700, 700):
        run.perform_due(world, events, lowest)  # type: ignore[arg-type]
    assert (world.done, run.started_again) == ([], 0)
    monkeypatch.setattr(chaos_run, "REJOIN_S", -1.0)
    run.perform_due(world, events, 700)  # type: ignore[arg-type]
    run.perform_due(world, events, 701)  # type: ignore[arg-type]
    assert world.done == ["   700 kill node 1", "   700 start node 1", "   700 kill node 0", "   701 kill worker 2"]
    assert (run.started_again, run.held_since, events) == (1, None, [])


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_hundred_searches_in_motion(tmp_path: Path) -> None:
    summary = perform(Plan(seed=5, searches=300), tmp_path, log=tmp_path / "log.jsonl")
    assert summary["searches"] == 300
    for name in ("lost", "doubled", "unmarked_or_wrong", "failed_without_a_fault_of_opensearch"):
        assert summary[name] == 0, summary
    assert summary["reranked"] > 100
